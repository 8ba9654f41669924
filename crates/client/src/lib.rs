//! A mount: name space, layouts, locks, page cache and I/O engine, as an async library.
