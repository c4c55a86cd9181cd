# Traps and signals. Read by bash, and by dash as `sh`.
trap 'echo exit trap $?' EXIT
trap 'echo got USR1' USR1
trap 'echo got TERM' TERM
kill -USR1 $$
kill -TERM $$
(trap 'echo inner exit' EXIT; exit 3)
echo "subshell $?"
sh -c 'kill -9 $$'
echo "killed $?"
sh -c 'kill -TERM $$'
echo "terminated $?"
sh -c 'trap "exit 7" INT; kill -INT $$; sleep 5'
echo "interrupt caught $?"
trap - TERM
sleep 100 &
# Not before it is `sleep`: until then it is this shell's copy, with this shell's traps.
until [ "$(ps -o comm= -p $!)" = sleep ]; do :; done
kill $!
wait $!
echo "waited $?"
(sleep 0.1; kill -USR1 $$; sleep 0.5) &
wait $!
echo "wait $?"
timeout 0.2 sleep 100
echo "timeout $?"
timeout -s KILL 0.2 sleep 100
echo "timeout by kill $?"
yes | head -n 1
sh -c 'exec sh -c "exit 5"'
echo "exec $?"
trap '' PIPE
exit 6
