"""Step 5, handing on: events in the words of other people's systems, to where those systems are.

One file per format (cloudevents, ocsf, cef, otel), one per sink (to_file, to_http, to_nats); pump.py carries from the one to the
other and remembers in a cursor how far it came (cursor.py). What is exported is what is recorded: the journal holds no
secrets, and nothing is read but the journal.
"""
