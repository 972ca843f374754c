"""srt-slurm's cluster file, ``srtslurm.yaml``, to a cluster profile."""

from __future__ import annotations

from recipe_toolkit.document import Document
from recipe_toolkit.importers.notes import LOST, PROFILE, UNNEEDED, Note
from recipe_toolkit.importers.profile import ProfileDraft, read_directives, read_mounts
from recipe_toolkit.importers.reader import Source

_LOST = {
    "default_bash_preamble": "nothing is run in each container before its program; limits are raised by the runtime",
    "default_host_setup": "slurm.setup runs on the first node alone: nodes are taken as they are",
    "default_health_check": "each recipe says deadlines.ready",
    "reporting": "no results are sent anywhere",
    "telemetry": "no power is measured",
}
_UNNEEDED = {
    "default_time_limit": "each recipe says time_limit",
    "gpus_per_node": "each recipe says resources.gpus_per_node",
    "default_gpu_type": "each recipe says resources.gpu",
    "srtctl_root": "nothing of srt-slurm is run",
    "nginx_raise_ulimit": "nginx is not used",
    "visible_devices_env": "the plan gives each process its own devices",
    "git_http_version": "nothing is cloned",
    "preflight": "what only the nodes can see is looked at there",
    "cloud": "nothing reads it",
}


def read_cluster(document: Document) -> tuple[ProfileDraft, list[Note]]:
    """The profile and a note of every key. Raises InputError."""
    source, profile = Source(document), ProfileDraft()
    root = source.root
    for key, path in (
        ("default_account", ("slurm", "account")),
        ("default_partition", ("slurm", "partition")),
        ("network_interface", ("interface",)),
        ("output_dir", ("runs",)),
    ):
        if root.at(key).given:
            profile.set(path, root.at(key).text() or "", root.at(key))
    for key, section in (("model_paths", ("models",)), ("containers", ("container", "images"))):
        for name, item in root.at(key).items():
            profile.set((*section, name), item.text() or "", item)
    root.at("cluster").use()
    _switches(source, profile)
    read_directives(root.at("default_sbatch_directives"), profile)
    mounts = root.at("default_mounts")
    read_mounts([(f"{host}:{item.text()}", item) for host, item in mounts.items()], profile)
    for kind, table in ((LOST, _LOST), (UNNEEDED, _UNNEEDED)):
        for key, why in table.items():
            if root.at(key).given:
                root.at(key).note(kind, why)
    for cursor in list(source.leftovers()):
        cursor.note(LOST, "a cluster profile has no place for it")
    source.refuse()
    return profile, source.notes


def _switches(source: Source, profile: ProfileDraft) -> None:
    root = source.root
    gpus, exclusive = root.at("use_gpus_per_node_directive"), root.at("use_exclusive_sbatch_directive")
    profile.data.setdefault("slurm", {})["gpus"] = "gpus-per-node" if gpus.flag(default=True) else "none"
    if gpus.given:
        gpus.note(PROFILE, "slurm.gpus of the cluster profile")
    if exclusive.given:
        profile.set(("slurm", "exclusive"), exclusive.flag(), exclusive)
    segment, het = root.at("use_segment_sbatch_directive"), root.at("use_het_jobs")
    if segment.flag():
        segment.note(PROFILE, "slurm.segment is a number here: the nodes of one block of the topology")
    if het.flag():
        het.note(LOST, "the job is one component: prefill and decode get nodes of the same kind and partition")
    segment.use(), het.use()
