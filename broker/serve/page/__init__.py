"""The local page (`broker serve`): what waits for the operator, the trees of tasks and what is refused, in a browser.

door.py says who comes in, http.py carries bytes with a bound on each of them, picture.py knows what there is to see,
server.py puts them together. page.html, page.css and page.js are all that a browser gets.
"""
