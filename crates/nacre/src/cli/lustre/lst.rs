//! The subcommands of `lst`.

use super::{ONLY_SUPPORTED, Tool, differs, only_nacre, refused, works};

pub(super) const TOOL: Tool = Tool {
    name: "lst",
    subcommand: "lst",
    groups: &[
        differs(
            &["new_session"],
            "starts a console process; the options --listen and --port set its address",
        ),
        works(&[
            "end_session",
            "show_session",
            "ping",
            "add_group",
            "del_group",
            "update_group",
            "list_group",
            "stat",
            "show_error",
            "add_batch",
            "run",
            "stop",
            "list_batch",
            "query",
            "add_test",
        ]),
        only_nacre(
            &["node"],
            "runs a node under test, as the module lnet_selftest does",
        ),
        differs(&["list-commands", "--list-commands"], ONLY_SUPPORTED),
        refused(
            &["quit", "exit", "ignore_errors", "--ignore_errors"],
            "Nacre's tools have no interactive mode",
            "call the tool once for each command",
        ),
    ],
};
