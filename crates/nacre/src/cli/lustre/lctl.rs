//! The subcommands of `lctl`.

use super::{Group, ONLY_SUPPORTED, Tool, differs, refused, works};

pub(super) const TOOL: Tool = Tool {
    name: "lctl",
    subcommand: "lctl",
    groups: GROUPS,
};

const SET_PARAM_P: &str = "use `lctl set_param -P`";

const GROUPS: &[Group] = &[
    differs(
        &["get_param", "set_param", "list_param", "help_param"],
        "fewer options; the process is selected with --dir or --mount",
    ),
    differs(&["dl", "device_list"], "the reference count is always 1"),
    differs(
        &["--device"],
        "limits `dl` to this device and names the target of `abort_recovery`, `notransno` and `readonly`; all other subcommands only check that it exists",
    ),
    works(&["ping"]),
    differs(&["nodemap_add", "nodemap_del"], "the name is an argument"),
    refused(
        &["nodemap_add --name", "nodemap_del --name"],
        "the name is an argument, as in Lustre",
        "use `lctl nodemap_add NAME`",
    ),
    works(&["nodemap_add_range", "nodemap_del_range"]),
    differs(
        &["nodemap_modify"],
        "properties: admin, trusted, squash_uid, squash_gid, readonly_mount, deny_mount, capabilities",
    ),
    works(&["list_nids"]),
    refused(
        &["device", "cfg_device"],
        "Nacre's tools have no interactive mode",
        "name the device in the parameter, as in `lctl get_param osc.*.max_rpcs_in_flight`",
    ),
    refused(
        &["network", "net", "--net"],
        "LNet runs as long as its process",
        "use `lnetctl net` and `lnetctl lnet configure`",
    ),
    refused(
        &["which_nid"],
        "a process of Nacre chooses the NID of each peer itself",
        "try a NID with `lctl ping`",
    ),
    refused(
        &["replace_nids"],
        "a target of Nacre registers its NIDs at each start",
        "start the target at its new address",
    ),
    refused(
        &["interface_list", "add_interface", "del_interface"],
        "interfaces belong to networks",
        "use `lnetctl net show`, `net add` and `net del`",
    ),
    refused(
        &["peer_list", "conn_list", "add_peer", "del_peer"],
        "peers are shown by another tool",
        "use `lnetctl peer show`",
    ),
    refused(
        &["route_list", "show_route", "add_route", "del_route", "set_route"],
        "routes belong to another tool",
        "use `lnetctl route show`, `route add` and `route del`",
    ),
    refused(
        &[
            "net_drop",
            "net_drop_add",
            "net_drop_del",
            "net_drop_reset",
            "net_drop_list",
            "net_delay",
            "net_delay_add",
            "net_delay_del",
            "net_delay_reset",
            "net_delay_list",
        ],
        "Nacre injects no faults into LNet",
        "drop or delay packets with tc-netem(8)",
    ),
    refused(
        &["activate", "deactivate"],
        "Nacre has no inactive imports",
        "keep new files off an OST with `lctl set_param osp.FSNAME-OST0001-*.max_create_count=0` on the MDT's host \
         (20000 ends this); an OST that does not answer gets none anyway, and a signal ends a program that waits for it",
    ),
    differs(
        &["abort_recovery", "abort_recovery_mdt"],
        "the device is an option: `lctl --device TARGET abort_recovery`",
    ),
    differs(
        &["notransno", "readonly"],
        "`readonly` implies `notransno`, and keeps a limited amount of changes in memory ([faults](faults.md))",
    ),
    refused(
        &["recover"],
        "imports of Nacre reconnect at least once a second",
        "see which targets answer with `lfs df`",
    ),
    refused(
        &["conf_param", "local_param"],
        "this is an older form of permanent parameters",
        SET_PARAM_P,
    ),
    refused(
        &["apply_yaml"],
        "Nacre reads no files of parameters",
        "use `lctl set_param NAME=VALUE..`",
    ),
    refused(
        &["find_param"],
        "this is another form of `list_param`",
        "use `lctl list_param -R` and grep(1)",
    ),
    refused(
        &["set_timeout"],
        "Nacre's servers adapt the timeouts of requests",
        "set the limits at the start with --param at_min=SECONDS and --param at_max=SECONDS",
    ),
    refused(
        &["del_ost"],
        "the MGS of Nacre keeps removed targets in its configuration",
        "empty an OST with `lctl set_param osp.FSNAME-OST0001-*.max_create_count=0` and copies of its files; replace a \
         lost OST with `nacre mkfs --replace`",
    ),
    refused(
        &[
            "debug_daemon",
            "debug_kernel",
            "dk",
            "debug_file",
            "df",
            "clear",
            "mark",
            "filter",
            "show",
            "debug_list",
            "modules",
        ],
        "Nacre logs to files instead of a buffer in the kernel",
        "start with NACRE_LOG=debug and read the log that `nacre status` names; for space use `lfs df`",
    ),
    refused(
        &["lustre_build_version", "version"],
        "Nacre has no kernel modules",
        "use `nacre --version` or `lctl get_param version`",
    ),
    refused(
        &["pool_new", "pool_add", "pool_remove", "pool_destroy", "pool_list"],
        "Nacre has no OST pools",
        "select the first OST with `lfs setstripe -i`",
    ),
    refused(
        &[
            "lqa",
            "lqa_new",
            "lqa_add",
            "lqa_remove",
            "lqa_destroy",
            "lqa_list",
        ],
        "Nacre has no quotas",
        "see the space of the file system with `lfs df`",
    ),
    refused(
        &[
            "barrier",
            "barrier_freeze",
            "barrier_thaw",
            "barrier_stat",
            "barrier_rescan",
        ],
        "Nacre has no write barriers",
        "stop the file system with `nacre down` before a copy of its directories",
    ),
    refused(
        &[
            "snapshot",
            "snapshot_create",
            "snapshot_destroy",
            "snapshot_modify",
            "snapshot_list",
            "snapshot_mount",
            "snapshot_umount",
        ],
        "Nacre has no snapshots",
        "stop the file system with `nacre down` and snapshot the disk below its directories",
    ),
    refused(
        &["nodemap", "nodemap_info"],
        "nodemaps are parameters",
        "use `lctl get_param 'nodemap.*.*'`",
    ),
    refused(
        &["nodemap_new"],
        "this is another name of `nodemap_add`",
        "use `lctl nodemap_add`",
    ),
    refused(
        &["nodemap_activate"],
        "nodemaps of Nacre are always active",
        "remove a nodemap with `lctl nodemap_del`",
    ),
    refused(
        &["nodemap_banlist_add", "nodemap_banlist_del"],
        "Nacre has no ban lists",
        "make a nodemap of these NIDs and set its property deny_mount",
    ),
    refused(
        &[
            "nodemap_fileset_add",
            "nodemap_fileset_del",
            "nodemap_fileset_modify",
            "nodemap_set_fileset",
        ],
        "nodemaps of Nacre have no filesets",
        "mount a subdirectory: MGSNID:/FSNAME/SUBDIR",
    ),
    refused(
        &[
            "nodemap_add_offset",
            "nodemap_del_offset",
            "nodemap_add_idmap",
            "nodemap_del_idmap",
        ],
        "nodemaps of Nacre do not map single ids",
        "map all users with the properties squash_uid and squash_gid",
    ),
    refused(
        &["nodemap_set_sepol", "nodemap_set_cap"],
        "nodemaps of Nacre neither check SELinux policies nor limit the Linux capabilities of users",
        "limit the rights of clients with `lctl nodemap_modify`",
    ),
    refused(
        &["nodemap_test_nid", "nodemap_test_id"],
        "Nacre does not test nodemaps",
        "compare the ranges in `lctl get_param 'nodemap.*.*'`",
    ),
    refused(
        &["changelog", "changelog_register", "changelog_deregister"],
        "Nacre records no changelogs",
        "scan with find(1) -newer",
    ),
    refused(
        &["pcc"],
        "Nacre has no persistent client cache",
        "copy files to a local disk",
    ),
    refused(
        &["attach", "detach", "setup", "cleanup"],
        "a process of Nacre makes its devices itself",
        "use `nacre serve`, `nacre mount` and `nacre down`",
    ),
    refused(
        &["lfsck", "lfsck_start", "lfsck_stop", "lfsck_query"],
        "Nacre checks a stopped file system only",
        "use `nacre fsck`",
    ),
    refused(
        &[
            "llog",
            "llog_catlist",
            "llog_info",
            "llog_print",
            "llog_cancel",
            "llog_check",
            "llog_remove",
        ],
        "the logs of Nacre's MGS are in its index",
        "see targets with `nacre status`, permanent parameters with `lctl get_param mgs.MGS.live.params`",
    ),
    refused(
        &[
            "lcfg_clear",
            "clear_conf",
            "lcfg_fork",
            "fork_lcfg",
            "lcfg_erase",
            "erase_lcfg",
        ],
        "Nacre does not rewrite configuration logs",
        "delete permanent parameters with `lctl set_param -P -d`",
    ),
    refused(
        &[
            "--threads",
            "lookup",
            "add_uuid",
            "del_uuid",
            "add_conn",
            "del_conn",
            "disconnect",
            "push",
            "mynid",
            "fail",
            "test_create",
            "test_mkdir",
            "test_destroy",
            "test_rmdir",
            "test_lookup",
            "test_setxattr",
            "test_md_getattr",
            "getattr",
            "setattr",
            "create",
            "destroy",
            "test_getattr",
            "test_setattr",
            "test_brw",
            "getobjversion",
        ],
        "this is a tool for tests of Lustre's modules",
        "measure with `nacre bench`",
    ),
    differs(&["list-commands", "--list-commands"], ONLY_SUPPORTED),
    refused(
        &["quit", "exit", "ignore_errors", "--ignore_errors"],
        "Nacre's tools have no interactive mode",
        "call the tool once for each command",
    ),
];
