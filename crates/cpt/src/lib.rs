//! CPU partitions: topology, patterns, and one pinned runtime per partition.

use std::{future::Future, pin::Pin};

/// A boxed future, for asynchronous methods of traits that are used as `dyn`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
