//! The parameters of a node under test, under the names of Lustre's module parameters, and fixed
//! limits.

use params::StartParam;
use params::start::{number, seconds, switch};
use std::time::Duration;

/// Maximum number of requests of one test in flight to each destination (`SFW_MAX_CONCUR`).
pub(crate) const CONCURRENCY_MAX: u32 = wire::SFW_MAX_CONCUR;
/// Maximum number of destinations of one test (`SFW_MAX_NDESTS`): the ids that fit into 256 pages.
pub(crate) const DESTINATIONS_MAX: u32 = 256 * wire::SFW_ID_PER_PAGE;
/// Maximum number of requests that one node has in flight for all tests of a session.
pub(crate) const UNITS_MAX: usize = 1 << 16;
/// Maximum number of batches of a session.
pub(crate) const BATCHES_MAX: usize = 1024;
/// Maximum number of tests of a batch.
pub(crate) const TESTS_MAX: usize = 1024;

/// The parameters that an administrator can set.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Whether the process serves LNet selftest, as a Lustre node does while the module is loaded.
    pub enabled: bool,
    /// A session ends after this time without requests of a console; zero: never.
    pub session_timeout: Duration,
    /// The longest time for a test request; zero: no limit.
    pub rpc_timeout: Duration,
    /// Maximum number of test requests that wait on each partition. All partitions together handle
    /// the same number at once, but each at least `SFW_TEST_WI_MIN`.
    pub srv_workitems: usize,
    /// Number of bulk transfers that this node corrupts, to test the other node's check.
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
        about: "1: serve LNet selftest, as a Lustre node does while the module is loaded",
        show: |c| u8::from(c.enabled).to_string(),
        set: |c, text| switch(text).map(|on| c.enabled = on),
    },
    StartParam {
        module: "lnet_selftest",
        name: "session_timeout",
        about: "seconds without requests of a console after which a selftest session ends; 0: never",
        show: |c| c.session_timeout.as_secs().to_string(),
        set: |c, text| seconds(text, 0..=1_000_000).map(|t| c.session_timeout = t),
    },
    StartParam {
        module: "lnet_selftest",
        name: "rpc_timeout",
        about: "timeout of a selftest request in seconds; 0: none",
        show: |c| c.rpc_timeout.as_secs().to_string(),
        set: |c, text| seconds(text, 0..=1_000_000).map(|t| c.rpc_timeout = t),
    },
    StartParam {
        module: "lnet_selftest",
        name: "brw_srv_workitems",
        about: "maximum number of selftest requests handled at once, and of those queued on each partition",
        show: |c| c.srv_workitems.to_string(),
        set: |c, text| number(text, 1..=65536).map(|n| c.srv_workitems = n),
    },
    StartParam {
        module: "lnet_selftest",
        name: "brw_inject_errors",
        about: "number of selftest bulk transfers to corrupt, to test the other node's check",
        show: |c| c.brw_inject_errors.to_string(),
        set: |c, text| number(text, 0..=u32::MAX).map(|n| c.brw_inject_errors = n),
    },
];
