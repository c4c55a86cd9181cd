"""Readers for pictures, sound, film and pages: programs whose files can be devices, networks or commands."""

from __future__ import annotations

import re

from broker.classify.call import Call, like, reader
from broker.classify.commands import judge_parsed
from broker.classify.grammar import parse
from broker.classify.risk import Risk
from broker.classify.roles import apply_role, default_why, judge_options
from broker.classify.scope import shown
from broker.classify.word import Word


def _network(call: Call, word: Word) -> None:
    call.add(Risk.NETWORK_EGRESS, "network.host", f"{call.name} reaches {shown(word.text)}.")


def _device(call: Call, what: str) -> None:
    call.add(Risk.SYSTEM_WRITE, "media.device", f"{what} is a screen, a camera or a sound device.")


@reader("window")
def _window(call: Call) -> None:
    """Programs with a window (or the table's `otherwise`), unless an option (`!batch`) makes them converters."""
    parsed = parse(call, call.words[1:])
    judge_parsed(call, call.entry, parsed)
    if "batch" not in call.marks:
        call.add(
            Risk.SYSTEM_WRITE,
            "media.window",
            f"{call.name} {call.entry.raw.get('otherwise', 'opens a window on the desktop')}.",
        )
    for word in parsed.operands:
        if word.text.startswith(("macro:", "vnd.sun.star.script:", "service:")):
            call.add(Risk.CODE_EXECUTION, "media.macro", f"{shown(word.text)} is a macro that it runs.")


_AV_NETWORK = re.compile(
    r"(?:[a-z][a-z0-9+.]*://|(?:http|https|tcp|udp|rtp|rtmp\w*|rtsp|srt|sftp|ftp|unix|ipfs):)"
)
_AV_WRAPPER = re.compile(r"(?:cache|async|crypto|subfile|hls|file|concatf):|subfile,[^:]*:|crypto\+|hls\+")
_AV_NOTHING = re.compile(r"(?:pipe|fd|data|md5):|-$|NUL$")
_AV_DEVICES = frozenset(
    "x11grab pulse alsa v4l2 video4linux2 avfoundation gdigrab dshow vfwcap kmsgrab fbdev jack sndio oss openal"
    " decklink iec61883 libcdio libdc1394 android_camera bktr xcbgrab sdl sdl2 xv opengl caca audiotoolbox".split()
)
_AV_CODE = re.compile(
    r"(?:^|[,;\]\s=])(?:ladspa|lv2|frei0r|frei0r_src|dnn_\w+|openclsrc|program_opencl|vapoursynth)\s*="
)
_AV_FILES = re.compile(
    r"(?:movie|subtitles|ass|textfile|fontfile|filename|lut3d|lut1d|haldclut|model)=\s*'?([^:,;'\]]+)"
)


def _av_file(call: Call, word: Word, *, written: bool) -> None:
    text = word.text
    wrapped = _AV_WRAPPER.match(text)
    while wrapped is not None:
        text = text[wrapped.end() :]
        wrapped = _AV_WRAPPER.match(text)
    if text.startswith(("concat:", "tee:")):
        for one in text.partition(":")[2].split("|"):
            _av_file(call, like(word, re.sub(r"^\[[^\]]*\]", "", one)), written=written)
    elif _AV_NETWORK.match(text):
        _network(call, word)
    elif not _AV_NOTHING.match(text):
        (call.write if written else call.read)(like(word, text) if text != word.text else word)


def _av_medium(call: Call, word: Word, medium: str, *, written: bool) -> None:
    if medium == "lavfi":
        _av_filter(call, word)
    elif medium == "tee":
        _av_file(call, like(word, "tee:" + word.text), written=written)
    elif medium != "null" and medium not in _AV_DEVICES:
        _av_file(call, word, written=written)


def _av_filter(call: Call, word: Word) -> None:
    if _AV_CODE.search(word.text):
        call.add(
            Risk.CODE_EXECUTION, "media.plugin", "A filter loads a library, or code, that is named in it."
        )
    if re.search(r"(?:^|[,;\]])a?zmq\b", word.text):
        call.add(Risk.NETWORK_EGRESS, "network.listen", "A filter takes orders from the network.")
    for path in _AV_FILES.findall(word.text):
        call.read(like(word, path.strip()))


@reader("ffmpeg")
def _ffmpeg(call: Call) -> None:
    """Read ffmpeg's family: nearly every option takes a value (the table lists those that do not), -i is an input."""
    entry, words = call.entry, call.words
    for risk in entry.effects:
        if risk is not Risk.SAFE:
            call.add(risk, f"program.{entry.name}", entry.why)
    written, medium, at = entry.repeated == "write", "", 1
    while at < len(words):
        word = words[at]
        at += 1
        if len(word.text) < 2 or word.text[0] != "-":
            _av_medium(call, word, medium, written=written)
            medium = ""
            continue
        name = word.text.partition(":")[0].replace("--", "-", 1)
        option = entry.options.get(name)
        if option is not None:
            for risk in option.effects:
                call.add(risk, f"option.{entry.name}{name}", f"{entry.name} {name} writes a file of its own.")
        if (option is not None and not option.takes) or (option is None and name.startswith("-no")):
            continue
        value = words[at] if at < len(words) else None
        at += 1
        if value is None:
            continue
        if name == "-i":
            _av_medium(call, value, medium, written=False)
            medium = ""
        elif name == "-f":
            medium = value.text
            if medium in _AV_DEVICES:
                _device(call, medium)
        elif option is None:
            if name.startswith("-/"):  # the value is in a file
                call.read(value)
        elif option.role == "awk":
            _av_filter(call, value)
        elif "://" in value.text:
            _network(call, value)
        elif option.role:
            apply_role(call, option.role, value, f"{entry.name} {name}")


_MAGICK_CODERS = re.compile(r"([A-Za-z][A-Za-z0-9-]*):(.*)", re.DOTALL)
_MAGICK_TEXT = frozenset("label caption text txt pango".split())
_MAGICK_MADE = frozenset(
    "xc canvas gradient radial-gradient plasma fractal pattern logo rose wizard granite netscape hald null mpr"
    " info fd inline stegano tile-image histogram mpri json yaml".split()
)
_MAGICK_SCREEN = frozenset("x show win display print scan scanx screenshot clipboard".split())


def _magick_file(call: Call, word: Word, *, written: bool, deep: int = 0) -> None:
    text = word.text
    if text.startswith("|"):
        call.add(Risk.CODE_EXECUTION, "media.pipe", "A file that begins with | is a command to ImageMagick.")
        call.shell_text(text[1:])
        return
    found = _MAGICK_CODERS.fullmatch(text)
    coder = found.group(1).lower() if found else ""
    rest = found.group(2) if found else text
    if found is not None and (coder in ("http", "https", "ftp", "file", "url") and rest.startswith("//")):
        if coder == "file":
            call.read(like(word, rest[2:]))
        else:
            _network(call, word)
    elif coder == "msl":
        call.read(like(word, rest))
        call.add(Risk.CODE_EXECUTION, "interpreter.script", "It runs ImageMagick's scripting language.")
    elif coder == "ephemeral":
        call.read(like(word, rest))
        call.delete(like(word, rest))
    elif coder in _MAGICK_SCREEN:
        _device(call, f"{coder}:")
    elif coder in _MAGICK_TEXT and not written:
        if rest.startswith("@") or coder in ("text", "txt"):
            call.read(like(word, rest.removeprefix("@")))
    elif coder in _MAGICK_MADE:
        return
    elif found is not None and deep < 4:
        _magick_file(call, like(word, rest), written=written, deep=deep + 1)
    elif written:
        call.write(word)
    else:
        path = re.sub(r"\[[^\]/]*\]$", "", text.removeprefix("@"))
        call.read(word if path == text else like(word, path))


@reader("magick")
def _magick(call: Call) -> None:
    """ImageMagick and GraphicsMagick: the last word is the output (`mogrify`: each is), words can be pseudo-files."""
    entry = call.entry
    tools = entry.raw.get("tools", "").split()
    if len(call.words) > 1 and call.words[1].text in tools:
        call.command(call.words[1:])
        return
    for risk in entry.effects:
        if risk is not Risk.SAFE:
            call.add(risk, f"program.{entry.name}", entry.why or default_why(entry, risk))
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    for option, value in parsed.options:
        if value is not None and value.text.startswith("@"):
            call.read(like(value, value.text[1:]))
        if value is not None and option.name == "-write":
            _magick_file(call, value, written=True)
    files = [word for word in parsed.operands if word.text not in ("(", ")") and word.text[:1] != "+"]
    if entry.repeated == "write":
        if not files or any(option.name == "-format" for option, _ in parsed.options):
            call.add(Risk.LOCAL_WRITE, f"program.{entry.name}", f"{entry.name} changes files.")
        for word in files:
            _magick_file(call, word, written=not word.text.startswith("@"))
        return
    last = len(files) - 1 if entry.suffix else len(files)
    for at, word in enumerate(files):
        _magick_file(call, word, written=at == last and (last > 0 or len(call.words) > 2))


_IMAGE_TAG_CHANGE = re.compile(r"-[\w:*#-]+(?:\+|-|\^)?(?:<=|=|<)", re.ASCII)
_IMAGE_TAG_COPY = re.compile(r"-[^<>=]*[<>](.*)", re.DOTALL)


@reader("exiftool")
def _exiftool(call: Call) -> None:
    """Read exiftool: -TAG prints, -TAG=value and -TAG<other write; conditions and formats can hold Perl."""
    entry, words = call.entry, call.words
    files: list[Word] = []
    changes = out = False
    at = 1
    while at < len(words):
        word = words[at]
        at += 1
        text = word.text
        if len(text) < 2 or text[0] != "-":
            files.append(word)
            continue
        option = entry.options.get(text) or entry.options.get(text.rstrip("0123456789!+"))
        if option is not None:
            for risk in option.effects:
                call.add(
                    risk,
                    f"option.exiftool{option.name}",
                    f"exiftool {option.name} writes files, or runs Perl.",
                )
            changes |= "change" in option.marks
            out |= "out" in option.marks
            if option.takes and at < len(words):
                apply_role(call, option.role, words[at], f"exiftool {option.name}")
                if "${" in words[at].text:
                    call.add(Risk.CODE_EXECUTION, "interpreter.code", "A format holds Perl that it runs.")
                at += 1
            continue
        copy = _IMAGE_TAG_COPY.fullmatch(text)
        if copy is not None and "${" in copy.group(1):
            call.add(Risk.CODE_EXECUTION, "interpreter.code", "A copied tag is given through Perl.")
        name, equals, value = text[1:].partition("=")
        lower = name.lower().rstrip("<")
        if equals and lower in ("o", "out", "filename", "directory", "testname", "hardlink", "symlink"):
            call.write(like(word, value))
            out |= lower == "o"
        elif equals and (lower in ("csv", "json", "j", "geotag", "tagsfromfile") or name.endswith("<")):
            call.read(like(word, value))
            changes |= lower != "tagsfromfile"
        elif _IMAGE_TAG_CHANGE.match(text) or copy is not None:
            changes = True
    for word in files:
        if changes and not out:
            call.write(word)
        call.read(word)
    if changes and (out or not files):
        call.add(Risk.LOCAL_WRITE, "program.exiftool", "exiftool writes files.")


_SOUND_DEVICES = frozenset("alsa pulseaudio coreaudio oss ossdsp sunau ao waveaudio sndio".split())


@reader("sox")
def _sox(call: Call) -> None:
    """Read sox: files come first (the last is the output), then effects; a file can be a command or a device."""
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    for risk in call.entry.effects:
        if risk is not Risk.SAFE:
            call.add(risk, f"program.{call.name}", call.entry.why)
    if any(
        option.name == "-t" and value and value.text in _SOUND_DEVICES for option, value in parsed.options
    ):
        _device(call, "What -t names")
    begin = frozenset(call.entry.raw["sound_effects"].split())
    names = [word.text for word in parsed.operands]
    end = next((at for at, text in enumerate(names) if text in begin), len(names))
    files = parsed.operands[:end]
    last = len(files) - 1 if call.entry.suffix else len(files)
    if files:  # a null file, or a device, in the last place
        behind = call.words[call.words.index(files[-1]) + 1 : len(call.words) - len(names) + end]
        if any(
            word.text in ("-n", "--null", "-d", "--default-device", "-p", "--sox-pipe") for word in behind
        ):
            last = len(files)
    for at, word in enumerate(files):
        if word.text.startswith("|"):
            call.add(Risk.CODE_EXECUTION, "media.pipe", "A file that begins with | is a command to sox.")
            call.shell_text(word.text[1:])
        elif "://" in word.text:
            _network(call, word)
        elif at == last:
            call.write(word)
        else:
            call.read(word)


@reader("ghostscript")
def _ghostscript(call: Call) -> None:
    """Read gs: options carry their values (-sOutputFile=…), files are PostScript programs that -dSAFER confines."""
    words, at = call.words, 1
    files: list[Word] = []
    texts = [word.text for word in words[1:]]
    if texts and all(text in ("-h", "-v", "-?", "--version", "--help") for text in texts):
        return
    call.add(Risk.LOCAL_WRITE, "program.gs", "Ghostscript writes its output, and temporary files.")
    for flag in ("-dNOSAFER", "-dDELAYSAFER", "-dWRITESYSTEMDICT"):
        if any(text.partition("=")[0] in (flag, "-D" + flag[2:]) for text in texts):
            call.add(
                Risk.CODE_EXECUTION, "option.gs" + flag, f"With {flag} a page can read, write and run all."
            )
    while at < len(words):
        word = words[at]
        text = word.text
        at += 1
        value: Word | None = None
        if text.startswith(("-sOutputFile=", "-sOutputFile#", "-SOutputFile=", "-sstdout=")):
            value = like(word, text[text.index("=" if "=" in text else "#") + 1 :])
        elif text == "-o" and at < len(words):
            value, at = words[at], at + 1
        elif text.startswith("-o") and len(text) > 2:
            value = like(word, text[2:])
        if value is not None:
            _ghostscript_output(call, value)
        elif text == "-c":
            call.add(Risk.CODE_EXECUTION, "interpreter.code", "-c runs PostScript given as text.")
            while at < len(words) and not words[at].text.startswith("-"):
                at += 1
        elif text.startswith("-I"):
            call.add(Risk.CODE_EXECUTION, "option.gs-I", "-I names a folder whose start-up files it runs.")
        elif text.startswith("@"):
            call.read(like(word, text[1:]))
            call.add(Risk.UNKNOWN, "program.dynamic", f"Its options are in {shown(text[1:])}.")
        elif not text.startswith("-"):
            files.append(word)
    for file in files:
        if call.entry.suffix and file is files[-1] and len(files) > 1:
            call.write(file)
        else:
            call.read(file)


def _ghostscript_output(call: Call, word: Word) -> None:
    command = re.fullmatch(r"(?:%pipe%|\|)(.*)", word.text, re.DOTALL)
    if command is not None:
        call.add(Risk.CODE_EXECUTION, "media.pipe", "Its output goes to a command.")
        call.shell_text(command.group(1))
    elif not word.text.startswith(("%stdout", "%stderr")):
        call.write(word)


@reader("exiv2")
def _exiv2(call: Call) -> None:
    """Read exiv2 [options] [action] file…: it prints unless told to change; -M and -m hold changes."""
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    words = parsed.operands
    actions = frozenset(call.entry.raw["writes"].split())
    writes = bool(words) and words[0].text in actions
    for word in words[1:] if writes else words:
        if writes or "change" in call.marks:
            call.write(word)
        call.read(word)


@reader("pandoc")
def _pandoc(call: Call) -> None:
    """Read pandoc: a format that is a file is a reader or writer in Lua; two sub-commands are other programs."""
    first = call.words[1].text if len(call.words) > 1 else ""
    if first == "lua":
        call.add(Risk.CODE_EXECUTION, "interpreter.script", "pandoc lua is an interpreter.")
        return
    if first == "server":
        call.add(Risk.NETWORK_EGRESS, "network.listen", "pandoc server waits for requests.")
        return
    parsed = parse(call, call.words[1:])
    judge_parsed(call, call.entry, parsed)
    for option, value in parsed.options:
        if "format" in option.marks and value is not None and (".lua" in value.text or "/" in value.text):
            apply_role(call, "script", value, f"pandoc {option.name}")
