//! The tunables of a node under test, under the names of Lustre's module parameters, and the limits that nobody sets.

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
            session_timeout: Duration::from_secs(100),
            rpc_timeout: Duration::from_secs(64),
            srv_workitems: wire::SFW_TEST_WI_MAX as usize,
            brw_inject_errors: 0,
        }
    }
}
