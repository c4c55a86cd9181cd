# Job control without a terminal: every job is a process group. Read by bash.
set -m
sleep 100 &
first=$!
sleep 200 &
second=$!
jobs
kill -STOP $first
# Both are a stopped process: T, and t where something traces it, as inside.
until [[ "$(ps -o state= -p $first)" = [Tt] ]]; do :; done
jobs %1
kill -CONT %1
until [ "$(ps -o state= -p $first)" = S ]; do :; done
jobs %1
(exit 4) &
wait -n
echo "wait -n $?"
kill %1 %2
wait $first
echo "first $?"
wait $second
echo "second $?"
(sleep 100; echo never) &
kill -- -$!
wait $!
echo "group $?"
jobs
sleep 0.1 &
fg %- 2>&1 || fg
echo "foreground $?"
nohup sh -c 'echo from nohup' 2>/dev/null
setsid --wait sh -c 'exit 8'
echo "setsid $?"
