//! Messages and structures compared with those of Lustre: captured traffic, logs, and the facts of
//! its headers.

mod captures;
mod facts;
