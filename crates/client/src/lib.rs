//! A mount: name space, layouts, locks, page cache and I/O engine, as an async library.

mod attr;
mod cred;
mod dirpage;
mod fidgen;
mod fld;
mod kernel;
mod layout;
