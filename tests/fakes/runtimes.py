"""Stands for docker, enroot, apptainer and pyxis' srun: takes the options that they take, and runs the program here.

Called as ``runtimes.py FOLDER PROGRAM ARGS…``. An option that the toolkit should not use, a mount whose source is not
there, or a working directory that nobody could write to ends the call with 125. The program is found in FOLDER/image
and /usr/bin, which stand for the image, and sees of the environment what it would in the real runtime. Each call adds
a line to calls.jsonl. Containers of docker are children of ``runtimes.py FOLDER dockerd``, as of the real daemon.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

FOLDER = Path(sys.argv[1])
SOCKET = str(FOLDER / "docker.sock")
IMAGE_ENV = {"PATH": f"{FOLDER}/image:/usr/bin:/bin", "IMAGE_SAYS": "yes", "PROBED": "the image's"}


def refuse(text):
    sys.stderr.write(f"fake {sys.argv[2]}: {text}\n")
    sys.exit(125)


def options(words, flags, valued):
    """(option to its values, what follows the options); an option is ``--NAME VALUE``."""
    found, words = {}, list(words)
    while words and words[0].startswith("--"):
        name = words.pop(0)
        if name in valued:
            found.setdefault(name, []).append(words.pop(0))
        elif name in flags:
            found[name] = []
        else:
            refuse(f"unknown option {name}")
    return found, words


def check_mounts(mounts, folder):
    """(SOURCE, TARGET, whether read-only) each; ``folder``: where the program starts."""
    for source, target, _ in mounts:
        if not Path(source).exists() or not target.startswith("/"):
            refuse(f"cannot mount {source} at {target}")
    if not any(f"{folder}/".startswith(f"{target}/") and not read_only for _, target, read_only in mounts):
        refuse(f"no mount in which {folder} could be written to")


def from_colons(text):
    source, target, *mode = text.split(":")
    return source, target, mode == ["ro"]


def by_name(names):
    return {name: os.environ[name] for name in names if name in os.environ}


# --- docker


def ask(request, files=()):
    link = socket.socket(socket.AF_UNIX)
    link.connect(SOCKET)
    socket.send_fds(link, [json.dumps(request).encode() + b"\n"], list(files))
    return link


def docker(words):
    if words[0] == "run":
        found, rest = options(
            words[1:],
            ("--rm", "--init"),
            ("--name", "--network", "--ipc", "--ulimit", "--user", "--env", "--tmpfs", "--workdir", "--gpus",
             "--device", "--cap-add", "--volume", "--entrypoint"),
        )  # fmt: skip
        (folder,), (name,), (program,) = found["--workdir"], found["--name"], found["--entrypoint"]
        check_mounts([from_colons(text) for text in found["--volume"]], folder)
        if found["--user"] != [f"{os.getuid()}:{os.getgid()}"]:
            refuse(f"--user {found['--user']} is not ours")
        said = dict(text.split("=", 1) for text in found["--env"] if "=" in text)
        env = {**IMAGE_ENV, **said, **by_name(text for text in found["--env"] if "=" not in text)}
        request = {"do": "run", "name": name, "argv": [program, *rest[1:]], "env": env, "cwd": folder}
        link = ask(request, (1, 2))
        signal.signal(signal.SIGTERM, lambda *_: ask({"do": "kill", "name": name, "signal": 15}).recv(100))
        return json.loads(link.recv(1000))["code"]
    if words[:2] == ["rm", "--force"]:
        return json.loads(ask({"do": "rm", "name": words[-1]}).recv(1000))["code"]
    if words[0] == "inspect":
        pid = json.loads(ask({"do": "pid", "name": words[-1]}).recv(1000))["pid"]
        print(pid if pid else "")
        return 0 if pid else 1
    if words[:2] == ["image", "inspect"]:
        print("sha256:1234")
        return 0
    return refuse(f"unknown command {words}")


CONTAINERS = {}


def dockerd(_):
    server = socket.socket(socket.AF_UNIX)
    server.bind(SOCKET)
    server.listen(50)
    while True:
        link, _ = server.accept()
        threading.Thread(target=serve, args=(link,), daemon=True).start()


def serve(link):
    data, files, _, _ = socket.recv_fds(link, 100000, 2)
    request = json.loads(data)
    process = CONTAINERS.get(request["name"])
    answer = {"code": 0}
    if request["do"] == "run":
        out, err = files
        process = subprocess.Popen(
            request["argv"], env=request["env"], cwd=request["cwd"], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip
        CONTAINERS[request["name"]] = process
        os.close(out)
        os.close(err)
        code = process.wait()
        end(process)
        CONTAINERS.pop(request["name"], None)
        answer = {"code": 128 - code if code < 0 else code}
    elif request["do"] == "pid":
        answer = {"pid": process.pid if process else None}
    elif process and request["do"] == "kill":
        process.send_signal(request["signal"])
    elif process:
        end(process)
        process.wait()
    with contextlib.suppress(BrokenPipeError):  # who asked for the container is gone, and it ran on
        link.sendall(json.dumps(answer).encode())


def end(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


# --- enroot


def enroot(words):
    if words[0] != "start":
        refuse(f"unknown command {words}")
    found, (image, *command) = options(words[1:], ("--root", "--rw"), ("--rc", "--mount", "--env"))
    mounts = [text.split(":") for text in found["--mount"]]
    if not Path(image).is_file() or any(len(mount) != 4 or mount[2] != "none" for mount in mounts):
        refuse(f"{image} or {mounts}")
    check_mounts([(mount[0], mount[1], mount[3].endswith(",ro")) for mount in mounts], command[0])
    if os.environ["ENROOT_MOUNT_HOME"] != "no" or os.environ["NVIDIA_VISIBLE_DEVICES"] != "void":
        refuse("the home folder, or GPUs")
    said = dict(text.split("=", 1) for text in found["--env"] if "=" in text)
    env = {**IMAGE_ENV, **said, **by_name(text for text in found["--env"] if "=" not in text)}
    name = "sh" if os.environ.get("ENROOT_LOGIN_SHELL") == "no" else "-sh"  # a login shell reads /etc/profile
    return os.execve("/bin/sh", [name, found["--rc"][0], *command], env)


# --- apptainer


def apptainer(words):
    if words[0] != "exec":
        refuse(f"unknown command {words}")
    found, (image, *command) = options(
        words[1:], ("--cleanenv", "--no-eval", "--writable-tmpfs", "--nv", "--fakeroot"), ("--home", "--pwd", "--bind")
    )
    (folder,), (home,) = found["--pwd"], found["--home"]
    check_mounts([from_colons(text) for text in found["--bind"]], folder)
    if "--cleanenv" not in found or not Path(image).is_file() or not Path(home.split(":")[0]).is_dir():
        refuse(f"{image} or {home}")
    os.chdir(folder)
    prefix = "APPTAINERENV_"
    own = {name.removeprefix(prefix): value for name, value in os.environ.items() if name.startswith(prefix)}
    env = {**IMAGE_ENV, "HOME": home.split(":")[0], **own}
    return os.execvpe(command[0], command, env)


# --- pyxis

PYXIS = {
    "--container-image", "--container-mounts", "--container-workdir", "--container-env", "--container-remap-root",
    "--container-writable", "--no-container-mount-home", "--no-container-entrypoint",
}  # fmt: skip


def srun(words):
    real = (FOLDER / "srun").read_text()
    if words == ["--help"]:
        print("      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH")
        return 0
    at = next((index for index, word in enumerate(words) if not word.startswith("-")), len(words))
    said = dict(word.partition("=")[::2] for word in words[:at])
    if "--container-image" not in said:
        return os.execv(real, [real, *words])
    own = {name for name in said if "container" in name}
    names = said["--export"].split(",")
    if own != PYXIS or names != said["--container-env"].split(",") or not Path(said["--container-image"]).is_file():
        refuse(f"{sorted(own ^ PYXIS)} or {said}")
    check_mounts([from_colons(text) for text in said["--container-mounts"].split(",")], said["--container-workdir"])
    image = {name: value for name, value in {**IMAGE_ENV, "HOME": "/root"}.items() if name not in names}
    passed = [word for word in words[:at] if "container" not in word and not word.startswith("--export=")]
    passed += [f"--export={','.join([*names, *(f'{name}={value}' for name, value in image.items())])}"]
    return os.execv(real, [real, *passed, f"--chdir={said['--container-workdir']}", *words[at:]])


if __name__ == "__main__":
    with (FOLDER / "calls.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(sys.argv[2:]) + "\n")
    sys.exit(
        {"docker": docker, "dockerd": dockerd, "enroot": enroot, "apptainer": apptainer, "srun": srun}[sys.argv[2]](
            sys.argv[3:]
        )
    )
