//! The subcommands of `lnetctl`.

use super::{Group, ONLY_SUPPORTED, Tool, differs, refused, works};

pub(super) const TOOL: Tool = Tool {
    name: "lnetctl",
    subcommand: "lnetctl",
    groups: GROUPS,
};

const NO_HEALTH: &str = "Nacre's LNet keeps no health values";

const GROUPS: &[Group] = &[
    differs(
        &["lnet configure", "lnet unconfigure"],
        "starts or stops a process that is only an LNet node; networks are set with --param",
    ),
    differs(&["net add"], "only networks of kind tcp"),
    works(&["net del"]),
    differs(&["net show", "peer show"], "without health values and latencies"),
    refused(
        &["net set"],
        NO_HEALTH,
        "remove and add the interface with `net del` and `net add`",
    ),
    works(&["route add", "route del", "route show", "routing show"]),
    works(&[
        "set routing",
        "set tiny_buffers",
        "set small_buffers",
        "set large_buffers",
    ]),
    refused(
        &["set numa_range", "set max_interfaces"],
        "Nacre chooses interfaces by networks and partitions only",
        "see docs/manual/network.md",
    ),
    differs(&["set discovery"], "accepts only 0"),
    differs(&["set drop_asym_route"], "accepts only 1"),
    differs(
        &["set retry_count", "set transaction_timeout"],
        "accepts only the present value, which --param lnet_retry_count=N or lnet_transaction_timeout=SECONDS sets at the start",
    ),
    refused(
        &[
            "set health_sensitivity",
            "set recovery_interval",
            "set router_sensitivity",
            "set recovery_limit",
            "set max_recovery_ping_interval",
        ],
        NO_HEALTH,
        "leave the setting out: Nacre does not use a router that does not answer",
    ),
    refused(
        &["set response_tracking"],
        "Nacre always tracks the answers to its own GETs, and no others",
        "leave the setting out",
    ),
    works(&["peer list"]),
    differs(
        &["peer add"],
        "accepts one NID for each peer, and has no effect: a peer appears with its first message",
    ),
    differs(
        &["peer del"],
        "disconnects the peer, which appears again with its next message",
    ),
    refused(&["peer set"], NO_HEALTH, "leave the command out"),
    works(&["stats show"]),
    refused(
        &["stats reset"],
        "Nacre's counters only grow",
        "subtract the values of two calls of `stats show`",
    ),
    differs(&["global show"], "0 for settings that Nacre lacks"),
    works(&["ping"]),
    differs(&["discover"], "the node does not store the peer"),
    works(&["cpt-of-nid"]),
    differs(&["import"], "the sections net, route, routing and buffers"),
    works(&["export"]),
    refused(
        &["debug", "debug recovery", "debug peer", "debug nidlist"],
        NO_HEALTH,
        "use `peer show -v 2`",
    ),
    refused(
        &["service-id"],
        "Nacre has no InfiniBand",
        "use networks of kind tcp",
    ),
    refused(
        &["udsp", "udsp add", "udsp del", "udsp show"],
        "Nacre has no user-defined selection policies",
        "set the priority of routes with `route add --priority`",
    ),
    refused(
        &["fault", "fault drop", "fault delay"],
        "Nacre injects no faults into LNet",
        "drop or delay packets with tc-netem(8)",
    ),
    refused(
        &["setup-mrrouting", "setup-sysctl"],
        "Nacre changes no settings of the kernel",
        "set routes with ip-route(8), kernel parameters with sysctl(8)",
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
