//! Captured traffic and logs of Lustre, compared byte for byte with what the `wire` crate builds.

#[path = "../../../wire/tests/it/captured/mod.rs"]
mod captured;
mod captures;
