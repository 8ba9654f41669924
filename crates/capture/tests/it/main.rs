//! Captured traffic and logs of Lustre, compared byte for byte with what the `wire` crate builds.

mod captures;
