"""Changes of every kind to files of an image and to a tmpfs, by what is seen of a container from its host."""

import errno
import hashlib
import io
import os
import shutil
import stat
import struct
import tarfile

IMAGE = "opt/image"  # a folder with something to change
MEMORY = "mnt"
FILES = ("same", "overwritten", "appended", "removed", "mode", "owner", "time", "noted", "capable", "linked", "to-link",
         "to-folder", "gone/file", "anew/old", "anew/deeper/old", "folder/inner/file", "to-file/file", "filled/file")  # fmt: skip
LINKS = ("link-retargeted", "link-to-file", "link-removed")
CAPABLE = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)  # security.capability: cap_net_bind_service+ep
SPARSE_BYTES, SPARSE_AT = 64 << 20, 32 << 20
CARRIED = ("user.", "security.capability")


def add_to_image(path):
    """To the archive of a root file system."""
    with tarfile.open(path, "a") as image:
        for name in FILES:
            member = tarfile.TarInfo(f"{IMAGE}/{name}")
            member.mode, member.mtime = 0o644, 1_000_000_000
            content = f"of the image: {name}\n".encode()
            member.size = len(content)
            image.addfile(member, io.BytesIO(content))
        for name in LINKS:
            member = tarfile.TarInfo(f"{IMAGE}/{name}")
            member.type, member.linkname = tarfile.SYMTYPE, "same"
            image.addfile(member)


def _write(path, content=b"new\n", mode="wb"):
    with open(path, mode) as file:
        file.write(content)


def _replace_by_link(path, target):
    os.unlink(path)
    os.symlink(target, path)


def _rename(folder, name):
    """As mv does: an overlay may refuse to rename folders of its image."""
    try:
        os.rename(folder, name)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copytree(folder, name, symlinks=True)
        shutil.rmtree(folder)


def _make_new_ones():
    """In the working directory."""
    os.makedirs("new/empty")
    _write("new/file")
    _write("new/" + "n" * 255)
    _write(b"new/line\n\xff")
    os.link("new/file", "new/file-again")
    os.symlink("/absent", "new/dangling")
    os.mkfifo("new/fifo", 0o620)
    os.mknod("new/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    with open("new/sparse", "wb") as file:
        os.truncate(file.fileno(), SPARSE_BYTES)
        os.pwrite(file.fileno(), b"in a hole", SPARSE_AT)
    os.setxattr("new/file", "user.note", b"\x00 of a user")
    os.setxattr("new/empty", "user.note", b"of a folder")
    os.setxattr("new/file", "security.capability", CAPABLE)
    os.chmod("new/sparse", 0o4711)
    os.chmod("new/empty", 0o3770)
    os.chown("new/dangling", 1000, 1001, follow_symlinks=False)
    os.utime("new/dangling", ns=(5, 1_234_567_890_123_456_789), follow_symlinks=False)


def _change_those_of_the_image():
    """In the working directory."""
    _write("overwritten", b"another")
    _write("appended", b"more\n", "ab")
    os.unlink("removed")
    os.chmod("mode", 0o2751)
    os.chown("owner", 1000, 1001)
    os.utime("time", ns=(5, 1_234_567_890_123_456_789))
    os.setxattr("noted", "user.note", b"of the image")
    os.setxattr("capable", "security.capability", CAPABLE)
    os.link("linked", "linked-again")
    _replace_by_link("to-link", "same")
    _replace_by_link("link-retargeted", "overwritten")
    os.unlink("link-to-file")
    _write("link-to-file")
    os.unlink("link-removed")
    os.unlink("to-folder")
    os.mkdir("to-folder")
    _write("to-folder/file")
    shutil.rmtree("to-file")
    _write("to-file")
    shutil.rmtree("gone")
    shutil.rmtree("anew")
    os.mkdir("anew", 0o711)
    _write("anew/new")
    _rename("folder", "renamed")
    _write("filled/new")
    os.utime("filled", ns=(5, 1_234_567_890_123_456_789))


def make(root):
    """`root`: of a container, in its host's /proc."""
    before = os.getcwd()
    try:
        os.chdir(f"{root}/{MEMORY}")
        _make_new_ones()
        os.chdir(f"{root}/{IMAGE}")
        _make_new_ones()
        _change_those_of_the_image()
    finally:
        os.chdir(before)


def _facts(path):
    its = os.lstat(path)
    facts = {"mode": stat.filemode(its.st_mode), "owner": (its.st_uid, its.st_gid), "modified": its.st_mtime_ns}
    if stat.S_ISLNK(its.st_mode):
        facts["target"] = os.readlink(path)
    if not stat.S_ISDIR(its.st_mode):
        facts["names"] = its.st_nlink
    if stat.S_ISCHR(its.st_mode):
        facts["device"] = its.st_rdev
    if stat.S_ISREG(its.st_mode):
        with open(path, "rb") as file:
            facts["content"] = hashlib.sha256(file.read()).hexdigest()
        facts["size"], facts["has holes"] = its.st_size, its.st_blocks * 512 < its.st_size // 2
    attributes = [name for name in os.listxattr(path, follow_symlinks=False) if name.startswith(CARRIED)]
    facts["attributes"] = {name: os.getxattr(path, name, follow_symlinks=False) for name in attributes}
    return facts


def listing(root):
    """Everything in what was changed, by its path."""
    found = {}
    for top in (IMAGE, MEMORY):
        top = os.path.join(os.fsencode(root), top.encode())
        for folder, folders, files in os.walk(top):
            for name in [*folders, *files]:
                path = os.path.join(folder, name)
                found[os.path.relpath(path, os.fsencode(root))] = _facts(path)
    return found
