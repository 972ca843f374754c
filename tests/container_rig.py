"""Stand-ins for docker, the NVIDIA Container Toolkit, enroot, pyxis and Slurm, as packages of the tests' repository."""

from __future__ import annotations

import tarfile
from pathlib import Path

from apt_rig import Repository

STUBS = Path(__file__).parent / "ansible" / "stubs"
TOOLKIT = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
UNIT = "[Service]\nExecStart=/usr/sbin/dockerd\n[Install]\nWantedBy=multi-user.target\n"
REFRESH = "[Service]\nType=oneshot\nExecStart=/usr/bin/nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml\n"
SMI = """cat > /usr/local/sbin/nvidia-smi <<'EOF'
#!/bin/sh
case $* in
  *--query-gpu=driver_version*) cat /etc/rig-driver;;
  *) echo "0, NVIDIA GB10, $(cat /etc/rig-driver), [N/A], [N/A]";;
esac
EOF
chmod +x /usr/local/sbin/nvidia-smi; echo 580.95.05 > /etc/rig-driver"""


def stub(name: str) -> str:
    """The text of a stand-in."""
    return (STUBS / name).read_text()


def fill(repository: Repository) -> None:
    """Docker, two versions of the toolkit, and what enroot and pyxis require."""
    files = {"/usr/bin/docker": stub("docker"), "/usr/sbin/dockerd": stub("dockerd")}
    files["/lib/systemd/system/docker.service"] = UNIT
    repository.add("docker.io", "28.2.2", files, postinst="#!/bin/sh\n/usr/local/sbin/systemctl enable --now docker\n")
    for version in ("1.18.0", "1.19.0"):
        files = {"/usr/bin/nvidia-ctk": stub("nvidia-ctk"), "/usr/share/rig-toolkit": version}
        files["/lib/systemd/system/nvidia-cdi-refresh.service"] = REFRESH
        for name in TOOLKIT:
            repository.add(name, f"{version}-1", files if name == TOOLKIT[0] else {})
    repository.add("rig-build", "1.0", {"/usr/bin/make": stub("make")})
    for name in ("enroot", "enroot+caps"):
        repository.add(name, "3.5.0-1", {"/usr/bin/enroot": "#!/bin/sh\necho 3.5.0\n"} if name == "enroot" else {})
    repository.publish()
    release = repository.folder / "releases" / "v3.5.0"
    release.mkdir(parents=True, exist_ok=True)
    for name in ("enroot", "enroot+caps"):
        (release / f"{name}_3.5.0-1_amd64.deb").write_bytes((repository.folder / f"{name}_3.5.0-1.deb").read_bytes())
    source = repository.folder / "pyxis_srun.c"
    source.write_text("int main;\n")
    with tarfile.open(repository.folder / "releases" / "v0.20.0.tar.gz", "w:gz") as archive:
        archive.add(source, "pyxis-0.20.0/pyxis_srun.c")
