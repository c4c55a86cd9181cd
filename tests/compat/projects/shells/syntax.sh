# Here-documents, substitutions, traps, descriptors: what scripts are made of. Read by bash.
set -u
cat <<END
one $((1 + 1)) $(echo three)
END
cat <<'END'
not $expanded
END
cat <<-END
	tabs removed
	END
cat <<<"a here-string"
diff <(printf 'a\nb\n') <(printf 'a\nc\n')
echo "diff said $?"
printf 'to a process\n' > >(tr a-z A-Z >upper.txt; echo done >&2)
wait $!
cat upper.txt
paste <(seq 3) <(seq 4 6)
mkfifo pipe
(echo through a fifo >pipe) &
read -r line <pipe
wait
echo "$line"
exec 3>descriptor.txt
echo three >&3
exec 3>&-
exec 4<descriptor.txt
read -r -u 4 word
echo "$word"
exec 4<&-
coproc cat
echo coprocess >&"${COPROC[1]}"
read -r answer <&"${COPROC[0]}"
echo "$answer"
kill "$COPROC_PID"
wait 2>/dev/null
shopt -s extglob nullglob globstar
touch a1 a2 b1
echo a@(1|2) **/b*
declare -A table=([x]=1 [y]=2)
echo "${#table[@]} ${table[y]}"
for word in alpha beta; do echo "${word^^}"; done | sort -r
mapfile -t lines < <(seq 5)
echo "${lines[@]: -2}"
(exit 3) || echo "subshell $?"
false | true
echo "${PIPESTATUS[0]}"
set -o pipefail
false | true
echo "pipefail $?"
set +o pipefail
no-such-program
echo "not found $?"
./pipe
echo "not executable $?"
time -p true 2>/dev/null
printf '%s\n' "$BASHPID" >/dev/null
command -v cat >/dev/null && echo found
type -t cat
ulimit -n >/dev/null && echo limits
rm pipe
exit 42
