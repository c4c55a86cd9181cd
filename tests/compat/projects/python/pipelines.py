"""300 pipelines while a timer interrupts this process every two milliseconds."""

import signal
import subprocess

ticks = 0


def tick(_number: int, _frame: object) -> None:
    global ticks
    ticks += 1


signal.signal(signal.SIGALRM, tick)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
total = 0
for number in range(300):
    pipeline = f"seq {number} | grep -v 7 | wc -l"
    made = subprocess.run(pipeline, shell=True, capture_output=True, text=True, check=True)
    total += int(made.stdout)
signal.setitimer(signal.ITIMER_REAL, 0)
print(total, ticks > 50)
