//! Nothing but a manifest: the features that the tests of all crates together use of their shared
//! dependencies. Cargo unites features over what one command builds, so that otherwise each crate's
//! tests would compile tokio, rustix and all that stands on them for themselves.
