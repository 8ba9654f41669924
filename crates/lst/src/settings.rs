//! The tunables of a node under test, under the names of Lustre's module parameters, and the limits that nobody sets.

use params::StartParam;
use params::start::{number, seconds, switch};
use std::time::Duration;

/// Requests of one test that a node may have in flight to each of its destinations (`SFW_MAX_CONCUR`).
pub(crate) const CONCURRENCY_MAX: u32 = wire::SFW_MAX_CONCUR;
/// Destinations of one test (`SFW_MAX_NDESTS`): the ids that 256 pages hold.
pub(crate) const DESTINATIONS_MAX: u32 = 256 * wire::SFW_ID_PER_PAGE;
/// Requests that all tests of a node may have in flight together.
pub(crate) const UNITS_MAX: usize = 1 << 16;
/// Batches of a session.
pub(crate) const BATCHES_MAX: usize = 1024;
/// Tests of a batch.
pub(crate) const TESTS_MAX: usize = 1024;

/// What an administrator may set.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Whether a process answers LNet selftest at all: Lustre's nodes do while the module is loaded.
    pub enabled: bool,
    /// A session that no console asks for anything for so long ends; zero: never.
    pub session_timeout: Duration,
    /// How long a request may take; zero: for ever.
    pub rpc_timeout: Duration,
    /// Test requests that this node serves at once.
    pub srv_workitems: usize,
    /// How many of the bulks that this node sends next it damages, so that the other side finds it.
    pub brw_inject_errors: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            enabled: false,
            session_timeout: Duration::from_secs(100),
            rpc_timeout: Duration::from_secs(64),
            srv_workitems: wire::SFW_TEST_WI_MAX as usize,
            brw_inject_errors: 0,
        }
    }
}

/// The start parameters, one row for each.
pub const START: &[StartParam<Settings>] = &[
    StartParam {
        module: "lnet_selftest",
        name: "lnet_selftest",
        about: "1: answer LNet selftest, as a node of Lustre does while the module is loaded",
        show: |c| u8::from(c.enabled).to_string(),
        set: |c, text| switch(text).map(|on| c.enabled = on),
    },
    StartParam {
        module: "lnet_selftest",
        name: "session_timeout",
        about: "seconds without requests of its console after which a selftest session ends; 0: never",
        show: |c| c.session_timeout.as_secs().to_string(),
        set: |c, text| seconds(text, 0..=1_000_000).map(|t| c.session_timeout = t),
    },
    StartParam {
        module: "lnet_selftest",
        name: "rpc_timeout",
        about: "seconds that a selftest request may take; 0: for ever",
        show: |c| c.rpc_timeout.as_secs().to_string(),
        set: |c, text| seconds(text, 0..=1_000_000).map(|t| c.rpc_timeout = t),
    },
    StartParam {
        module: "lnet_selftest",
        name: "brw_srv_workitems",
        about: "selftest requests served at once, and waiting on each partition",
        show: |c| c.srv_workitems.to_string(),
        set: |c, text| number(text, 1..=65536).map(|n| c.srv_workitems = n),
    },
    StartParam {
        module: "lnet_selftest",
        name: "brw_inject_errors",
        about: "how many of the next selftest bulks that are sent are damaged, to be found by the other side",
        show: |c| c.brw_inject_errors.to_string(),
        set: |c, text| number(text, 0..=u32::MAX).map(|n| c.brw_inject_errors = n),
    },
];
