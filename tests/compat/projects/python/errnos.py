"""What fails anyway must fail with the errno that programs look for."""

import errno
import os


def tried(name: str, function, *arguments: object) -> None:
    try:
        function(*arguments)
    except OSError as error:
        print(name, errno.errorcode[error.errno])
    else:
        print(name, "worked")


tried("mkdir of a folder that exists", os.mkdir, "/usr")
tried("mkdir of the root", os.mkdir, "/")
tried("mkdir below nothing", os.mkdir, "/no-such-folder/x")
tried("mkdir of a folder of ours that exists", os.mkdir, "/tmp")
tried("open of nothing for writing", os.open, "/usr/no-such-file", os.O_WRONLY)
tried("open of a folder for writing", os.open, "/usr", os.O_WRONLY)
tried("open below a file", os.open, "/etc/passwd/x", os.O_WRONLY | os.O_CREAT)
tried("chmod of nothing", os.chmod, "/usr/no-such-file", 0o600)
tried("times of nothing", os.utime, "/usr/no-such-file")
tried("truncate of nothing", os.truncate, "/usr/no-such-file", 0)
tried("symlink over what exists", os.symlink, "x", "/usr")
tried("link of nothing", os.link, "/usr/no-such-file", "here")
tried("a name too long", os.mkdir, "x" * 300)
tried("an empty path", os.mkdir, "")
os.makedirs("a/b/c")
os.makedirs("a/b/c", exist_ok=True)
os.makedirs(os.path.join(os.environ["TMPDIR"], "a/b"), exist_ok=True)
