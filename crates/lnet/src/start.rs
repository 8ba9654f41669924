//! The start parameters of LNet and socklnd: rows of Lustre's module parameters to fields of [`LnetConfig`].

use crate::LnetConfig;
use params::StartParam;
use params::start::{number, seconds};

/// One row for each.
pub const START: &[StartParam<LnetConfig>] = &[
    StartParam {
        module: "ksocklnd",
        name: "credits",
        about: "messages on their way out through all connections; split over the partitions",
        show: |c| c.credits.to_string(),
        set: |c, text| number(text, 1..=65536).map(|n| c.credits = n),
    },
    StartParam {
        module: "ksocklnd",
        name: "peer_credits",
        about: "messages on their way out to one peer",
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
        about: "seconds of silence after which a connection is asked whether it lives",
        show: |c| c.keepalive.as_secs().to_string(),
        set: |c, text| seconds(text, 1..=3600).map(|t| c.keepalive = t),
    },
    StartParam {
        module: "lnet",
        name: "accept_timeout",
        about: "seconds that an accepted connection may take to say who it is",
        show: |c| c.accept_timeout.as_secs().to_string(),
        set: |c, text| seconds(text, 1..=600).map(|t| c.accept_timeout = t),
    },
    StartParam {
        module: "lnet",
        name: "accept_backlog",
        about: "accepted connections that may be saying who they are at once",
        show: |c| c.accept_pending_max.to_string(),
        set: |c, text| number(text, 1..=65536).map(|n| c.accept_pending_max = n),
    },
    StartParam {
        module: "lnet",
        name: "lnet_transaction_timeout",
        about: "seconds that a put or a get may take, all attempts and the answer together",
        show: |c| c.transaction_timeout.as_secs().to_string(),
        set: |c, text| seconds(text, 1..=3600).map(|t| c.transaction_timeout = t),
    },
    StartParam {
        module: "lnet",
        name: "lnet_retry_count",
        about: "how often a message that did not leave is sent again",
        show: |c| c.retry_count.to_string(),
        set: |c, text| number(text, 0..=255).map(|n| c.retry_count = n),
    },
];
