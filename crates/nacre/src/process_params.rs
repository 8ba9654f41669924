//! Parameters of the process itself: version and log.

use params::{Param, ParamGuard, Registry};

use crate::logging;

/// Registers the parameters until the caller drops the returned guards.
pub(crate) fn register_process_params(registry: &Registry) -> Vec<ParamGuard> {
    let version = || format!("nacre {}", env!("CARGO_PKG_VERSION"));
    vec![
        registry.register(
            "version",
            Param::read_only(version).about("the version of this program"),
        ),
        registry.register(
            "nacre.log_level",
            Param::read_write(logging::levels, logging::set_levels)
                .about("levels of the log: off, error, warn, info, debug or trace, also CRATE=LEVEL"),
        ),
        registry.register(
            "nacre.log_format",
            Param::read_write(|| logging::format_name().to_owned(), logging::set_format)
                .about("format of the log: text or json"),
        ),
    ]
}
