//! The servers' log, for debugging: `NACRE_FUZZ_LOG=1` writes it to standard error.

use std::sync::Once;

/// Starts logging if `NACRE_FUZZ_LOG` is set.
pub fn start() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::env::var_os("NACRE_FUZZ_LOG").is_some() {
            let log = tracing_subscriber::fmt()
                .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
                .without_time()
                .with_writer(std::io::stderr);
            log.init();
        }
    });
}
