# A terminal multiplexer: a server that outlives the client that started it, terminals of its own, a socket.
set -e
export TERM=screen
tmux -L compat -f /dev/null new-session -d -s work -x 80 -y 24 'PS1="$ " exec sh'
tmux -L compat send-keys -t work 'echo typed $((6 * 7)); tty >/dev/null && echo on a terminal' Enter
until tmux -L compat capture-pane -p -t work | grep -q '^on a terminal'; do sleep 0.05; done
tmux -L compat capture-pane -p -t work | grep -v '^\$' | grep .
tmux -L compat split-window -t work 'stty size >size; exec sleep 100'
until [ -s size ]; do sleep 0.05; done
cat size
tmux -L compat list-panes -t work -F '#{pane_index} #{pane_width}x#{pane_height}'
tmux -L compat send-keys -t work.0 'sleep 100' Enter
until tmux -L compat list-panes -t work -F '#{pane_current_command}' | grep -q sleep; do sleep 0.05; done
tmux -L compat kill-server
tmux -L compat list-sessions 2>/dev/null || echo "gone $?"
