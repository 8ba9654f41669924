//! The options of `mkfs.lustre`.

use super::{Tool, differs, refused, works};

pub(super) const TOOL: Tool = Tool {
    name: "mkfs.lustre",
    subcommand: "mkfs",
    groups: &[
        differs(
            &["--mgs", "--mdt", "--ost"],
            "one target in each directory, never on a device",
        ),
        works(&[
            "--fsname",
            "--index",
            "--mgsnode",
            "--servicenode",
            "--replace",
            "--quiet",
        ]),
        differs(&["--reformat"], "refuses a directory with a target"),
        refused(
            &["--failnode"],
            "the target's first node counts, too",
            "name all nodes that may run the target with --servicenode",
        ),
        refused(
            &[
                "--backfstype",
                "--mkfsoptions",
                "--mountfsoptions",
                "--stripe-count-hint",
            ],
            "a target is a directory in a mounted file system",
            "make and mount that file system first",
        ),
        refused(
            &["--device-size"],
            "a target is a directory in a mounted file system",
            "limit its size by that of the file system",
        ),
        refused(
            &["--param"],
            "parameters are set in the running file system",
            "use `lctl set_param -P NAME=VALUE`",
        ),
        refused(
            &["--dryrun"],
            "Nacre has no dry run",
            "try the command with a new temporary directory",
        ),
        refused(
            &["--nomgs", "--comment", "--network", "--force-nohostid"],
            "the option has no counterpart in Nacre",
            "leave it out",
        ),
    ],
};
