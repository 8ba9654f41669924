//! The start parameters of LNet and socklnd: Lustre's module parameters, stored in [`LnetConfig`].

use crate::net_syntax::{networks_text, routes_text};
use crate::{LnetConfig, parse_networks, parse_routes};
use params::StartParam;
use params::start::{number, seconds, switch};

/// One row for each parameter.
pub const START: &[StartParam<LnetConfig>] = &[
    StartParam {
        module: "ksocklnd",
        name: "credits",
        about: "concurrent sends through an interface, split over its partitions",
        show: |c| c.credits.to_string(),
        set: |c, text| number(text, 1..=65536).map(|n| c.credits = n),
    },
    StartParam {
        module: "ksocklnd",
        name: "peer_credits",
        about: "concurrent sends to one peer",
        show: |c| c.peer_credits.to_string(),
        set: |c, text| number(text, 1..=32768).map(|n| c.peer_credits = n),
    },
    StartParam {
        module: "ksocklnd",
        name: "sock_timeout",
        about: "seconds without progress after which a socket is closed",
        show: |c| c.sock_timeout.as_secs().to_string(),
        set: |c, text| seconds(text, 1..=3600).map(|t| c.sock_timeout = t),
    },
    StartParam {
        module: "ksocklnd",
        name: "keepalive",
        about: "seconds between keepalives on an idle connection",
        show: |c| c.keepalive.as_secs().to_string(),
        set: |c, text| seconds(text, 1..=3600).map(|t| c.keepalive = t),
    },
    StartParam {
        module: "lnet",
        name: "accept",
        about: "connections to accept: secure (from other hosts only from ports below 1024), all, none",
        show: |c| c.accept.to_string(),
        set: |c, text| text.trim().parse().map(|accept| c.accept = accept),
    },
    StartParam {
        module: "lnet",
        name: "accept_timeout",
        about: "seconds within which an accepted connection must send its hello",
        show: |c| c.accept_timeout.as_secs().to_string(),
        set: |c, text| seconds(text, 1..=600).map(|t| c.accept_timeout = t),
    },
    StartParam {
        module: "lnet",
        name: "accept_backlog",
        about: "maximum number of accepted connections that wait for their hello",
        show: |c| c.accept_pending_max.to_string(),
        set: |c, text| number(text, 1..=65536).map(|n| c.accept_pending_max = n),
    },
    StartParam {
        module: "lnet",
        name: "lnet_transaction_timeout",
        about: "seconds that a PUT or GET may take, including all attempts and the answer",
        show: |c| c.transaction_timeout.as_secs().to_string(),
        set: |c, text| seconds(text, 1..=3600).map(|t| c.transaction_timeout = t),
    },
    StartParam {
        module: "lnet",
        name: "lnet_retry_count",
        about: "maximum number of retries of a failed send",
        show: |c| c.retry_count.to_string(),
        set: |c, text| number(text, 0..=255).map(|n| c.retry_count = n),
    },
    StartParam {
        module: "lnet",
        name: "networks",
        about: "networks, their interfaces and partitions: tcp(eth0)[0,1],tcp1(eth1); empty: the address of --listen",
        show: |c| networks_text(&c.networks),
        set: |c, text| {
            parse_networks(text)
                .map(|n| c.networks = n)
                .map_err(|e| e.to_string())
        },
    },
    StartParam {
        module: "lnet",
        name: "routes",
        about: "routers to other networks: tcp1 192.168.0.[1-2]@tcp; tcp2 2 192.168.0.3@tcp:1",
        show: |c| routes_text(&c.routes),
        set: |c, text| {
            parse_routes(text)
                .map(|r| c.routes = r)
                .map_err(|e| e.to_string())
        },
    },
    StartParam {
        module: "lnet",
        name: "forwarding",
        about: "enabled: this node is a router between its networks",
        show: |c| if c.forwarding { "enabled" } else { "disabled" }.to_owned(),
        set: |c, text| {
            let index = ["disabled", "enabled"]
                .into_iter()
                .position(|word| word == text.trim());
            let index = index.ok_or_else(|| "expected enabled or disabled".to_owned())?;
            c.forwarding = index == 1;
            Ok(())
        },
    },
    StartParam {
        module: "lnet",
        name: "portal_rotor",
        about: "distribution of requests over partitions: 0 OFF, 1 ON, 2 RR_RT, 3 HASH_RT",
        show: |c| (c.portal_rotor as u8).to_string(),
        set: |c, text| text.trim().parse().map(|mode| c.portal_rotor = mode),
    },
    StartParam {
        module: "lnet",
        name: "tiny_router_buffers",
        about: "a router's buffers for messages without payload; 0: 2048, at least 512 for each partition",
        show: |c| c.tiny_router_buffers.to_string(),
        set: |c, text| number(text, 0..=1 << 20).map(|n| c.tiny_router_buffers = n),
    },
    StartParam {
        module: "lnet",
        name: "small_router_buffers",
        about: "a router's buffers for payloads up to 4 KiB; 0: 16384, at least 4096 for each partition",
        show: |c| c.small_router_buffers.to_string(),
        set: |c, text| number(text, 0..=1 << 20).map(|n| c.small_router_buffers = n),
    },
    StartParam {
        module: "lnet",
        name: "large_router_buffers",
        about: "a router's buffers for larger payloads, up to 1 MiB; 0: 1024, at least 256 for each partition",
        show: |c| c.large_router_buffers.to_string(),
        set: |c, text| number(text, 0..=1 << 20).map(|n| c.large_router_buffers = n),
    },
    StartParam {
        module: "lnet",
        name: "peer_buffer_credits",
        about: "router buffers that one peer may hold; 0: the same as peer_credits",
        show: |c| c.peer_buffer_credits.to_string(),
        set: |c, text| number(text, 0..=32768).map(|n| c.peer_buffer_credits = n),
    },
    StartParam {
        module: "lnet",
        name: "check_routers_before_use",
        about: "1: routers count as down until they have answered",
        show: |c| u8::from(c.check_routers_before_use).to_string(),
        set: |c, text| switch(text).map(|on| c.check_routers_before_use = on),
    },
    StartParam {
        module: "lnet",
        name: "avoid_asym_router_failure",
        about: "1: a router is not used for a network on which its own interface is down",
        show: |c| u8::from(c.avoid_asym_router_failure).to_string(),
        set: |c, text| switch(text).map(|on| c.avoid_asym_router_failure = on),
    },
    StartParam {
        module: "lnet",
        name: "alive_router_check_interval",
        about: "seconds between pings to a router that is up; 0: no router is pinged",
        show: |c| c.alive_router_check_interval.as_secs().to_string(),
        set: |c, text| seconds(text, 0..=86400).map(|t| c.alive_router_check_interval = t),
    },
    StartParam {
        module: "lnet",
        name: "dead_router_check_interval",
        about: "seconds between pings to a router that is down; 0: only when this node hears from it",
        show: |c| c.dead_router_check_interval.as_secs().to_string(),
        set: |c, text| seconds(text, 0..=86400).map(|t| c.dead_router_check_interval = t),
    },
    StartParam {
        module: "lnet",
        name: "router_ping_timeout",
        about: "seconds that a router may take to answer a ping",
        show: |c| c.router_ping_timeout.as_secs().to_string(),
        set: |c, text| seconds(text, 1..=3600).map(|t| c.router_ping_timeout = t),
    },
    StartParam {
        module: "ksocklnd",
        name: "conns_per_peer",
        about: "bulk connections in each direction to a peer; 0: depends on the interface's speed",
        show: |c| c.conns_per_peer.to_string(),
        set: |c, text| number(text, 0..=8).map(|n| c.conns_per_peer = n),
    },
    StartParam {
        module: "ksocklnd",
        name: "peer_timeout",
        about: "seconds; has no effect, lnetctl only shows it",
        show: |c| c.peer_timeout.as_secs().to_string(),
        set: |c, text| seconds(text, 0..=86400).map(|t| c.peer_timeout = t),
    },
];
