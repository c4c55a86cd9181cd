# 300 pipelines of five processes, while a signal arrives every few milliseconds. Read by bash.
ticks=0
trap 'ticks=$((ticks + 1))' USR1
(while kill -USR1 $$ 2>/dev/null; do sleep 0.005; done) &
ticker=$!
total=0
for number in $(seq 300); do
    count=$(seq "$number" | grep -v 7 | sort -r | tail -n +1 | wc -l)
    total=$((total + count))
done
kill $ticker
wait $ticker 2>/dev/null
[ "$ticks" -gt 50 ] && echo ticked
echo "$total"
