//! A whole cluster in one thread, for tests: time is virtual, and one seed determines all events.
//!
//! [`store`] has the disks of the servers. The crate is empty without the feature `sim`, because
//! that feature changes `cpt`: test it with `cargo test -p sim --features sim`.
#![cfg(feature = "sim")]

pub mod store;
