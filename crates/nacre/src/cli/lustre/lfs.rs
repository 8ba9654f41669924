//! The subcommands of `lfs`.

use super::{Group, ONLY_SUPPORTED, Tool, differs, refused, works};

pub(super) const TOOL: Tool = Tool {
    name: "lfs",
    subcommand: "lfs",
    groups: GROUPS,
};

const NO_HSM: &str = "Nacre has no HSM";
const COPY_FILE: &str = "to change a layout, make a new file with `lfs setstripe` and copy the data";
const NO_SWAP: &str = "Nacre's lfs does not swap layouts (Lustre's does, on a mount of its kernel client)";

const GROUPS: &[Group] = &[
    differs(&["setstripe"], "no mirrors; a file with data keeps its layout"),
    refused(
        &[
            "setstripe --component-add",
            "setstripe --component-del",
            "setstripe --component-set",
        ],
        "Nacre does not change the components of a file",
        "set all components with -E when the file is created",
    ),
    refused(
        &["setstripe -z", "setstripe --extension-size"],
        "Nacre does not extend components by themselves",
        "set the ends of the components with -E",
    ),
    refused(
        &["setstripe -N", "setstripe --mirror-count"],
        "Nacre has no mirrors",
        "keep a second copy of the file",
    ),
    refused(
        &["setstripe -p", "setstripe --pool"],
        "Nacre has no OST pools",
        "select the first OST with -i",
    ),
    differs(
        &["getstripe"],
        "the entries of a directory are sorted; a plain layout counts as one component of one mirror",
    ),
    differs(&["df"], "also has -H, which shows powers of 1000"),
    refused(
        &["df -p", "df --pool"],
        "Nacre has no OST pools",
        "select an OST with -o",
    ),
    refused(
        &["df -u", "df --output"],
        "Nacre's table has fixed columns",
        "select columns with awk(1)",
    ),
    works(&["path2fid"]),
    differs(&["fid2path"], "PATH must be in a mount of a running process"),
    differs(&["rmfid"], "PATH must be in a mount of a running process"),
    differs(&["rm_entry", "rmentry"], "removes the names of lost files only"),
    differs(
        &["find"],
        "the tests that `nacre lfs find --help` lists; entries are sorted; -ls shows times in UTC. Tests of names, types, layouts and projects do not wait for an OST that does not answer; all others do",
    ),
    works(&[
        "check osts",
        "check mdts",
        "check mgts",
        "check all",
        "osts",
        "mdts",
        "getname",
    ]),
    differs(
        &["setdirstripe", "mkdir"],
        "does not change the stripes of an existing directory, and makes no foreign directories; on Nacre's servers a directory has one stripe",
    ),
    differs(
        &["getdirstripe"],
        "the entries of a directory are sorted; has no -O",
    ),
    refused(
        &["mv"],
        "Nacre's lfs does not move directories to other MDTs",
        "rename within the file system with mv(1)",
    ),
    differs(&["unlink_foreign"], "refuses files without a foreign layout"),
    refused(
        &["pool_list"],
        "Nacre has no OST pools",
        "select the first OST with `lfs setstripe -i`",
    ),
    refused(
        &["quota", "setquota"],
        "Nacre has no quotas",
        "see the space of the whole file system with `lfs df`, that of a tree with du(1)",
    ),
    refused(
        &["project"],
        "Nacre has no project ids",
        "see the space of a tree with du(1)",
    ),
    refused(
        &["flushctx"],
        "Nacre has no Kerberos contexts",
        "limit the rights of clients with nodemaps (`lctl nodemap_add`)",
    ),
    refused(
        &["changelog", "changelog_clear"],
        "Nacre records no changelogs",
        "scan with find(1) -newer",
    ),
    refused(
        &["data_version"],
        "Nacre's OSTs keep no data versions",
        "compare modification times or checksums of the file",
    ),
    refused(
        &[
            "hsm",
            "hsm_state",
            "hsm_set",
            "hsm_clear",
            "hsm_action",
            "hsm_archive",
            "hsm_restore",
            "hsm_release",
            "hsm_remove",
            "hsm_cancel",
        ],
        NO_HSM,
        "copy files to an archive with rsync(1)",
    ),
    refused(&["swap_layouts"], NO_SWAP, COPY_FILE),
    refused(&["migrate"], NO_SWAP, COPY_FILE),
    refused(
        &["ladvise"],
        "Nacre's servers take no advice",
        "limit a client's cache with `lctl set_param llite.*.max_cached_mb=N`",
    ),
    refused(
        &["mirror"],
        "Nacre has no mirrors",
        "keep a second copy of the file",
    ),
    refused(
        &["getsom", "somsync"],
        "Nacre has no tool to read or sync lazy sizes (LSOM)",
        "use stat(1)",
    ),
    refused(
        &["heat_get", "heat_set"],
        "Nacre measures no file heat",
        "see the load of each OST with `lctl get_param obdfilter.*.stats`",
    ),
    refused(
        &["pcc"],
        "Nacre has no persistent client cache",
        "copy files to a local disk",
    ),
    differs(&["list-commands", "--list-commands"], ONLY_SUPPORTED),
    refused(
        &["version"],
        "Nacre shows its version by an option",
        "use `nacre --version`",
    ),
    refused(
        &["quit", "exit", "ignore_errors", "--ignore_errors"],
        "Nacre's tools have no interactive mode",
        "call the tool once for each command",
    ),
];
