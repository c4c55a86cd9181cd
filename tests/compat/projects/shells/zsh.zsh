# What bash does not have. Read by zsh.
setopt extended_glob
print -l a b c > list
diff =(print -l a b) =(print -l a c)
print "diff $?"
print ${(U)$(<list)}
print -l **/*(.N) | sort
print multi > one > two
cat one two
TRAPUSR1() { print trapped }
kill -USR1 $$
zmodload zsh/zpty && zpty shell 'print in a terminal' && zpty -r shell line && print -r -- ${line%$'\r\n'}
coproc cat
print -p co
read -p answer
print $answer
repeat 3 { print -n x }; print
return 12
