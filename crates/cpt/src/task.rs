//! Tasks and the runtime that runs them: tokio's, with one addition. With the feature `sim`, many
//! nodes share one thread, and a task belongs to the node of its spawner
//! (`NodeScope`). Without the feature these are plain calls of tokio.
//!
//! The crates that a simulated node runs spawn tasks only through this module; a check of `xtask`
//! enforces this.

use std::future::Future;
use tokio::task::{AbortHandle, JoinError, JoinHandle};

#[cfg(feature = "sim")]
use crate::NodeScope;
#[cfg(feature = "sim")]
use std::sync::Arc;

/// Runs `future` as a task of the current runtime.
///
/// # Panics
///
/// Outside of a runtime.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    #[cfg(feature = "sim")]
    if NodeScope::current().is_some() {
        return Handle::current().spawn(future);
    }
    tokio::spawn(future)
}

/// Runs a function that blocks, on a thread for blocking work.
///
/// # Panics
///
/// Outside of a runtime.
pub fn spawn_blocking<T>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T>
where
    T: Send + 'static,
{
    Handle::current().spawn_blocking(work)
}

/// The time of tokio's clock, which tests can pause. Pure code takes it as an argument.
pub fn now() -> std::time::Instant {
    tokio::time::Instant::now().into_std()
}

/// A runtime.
#[derive(Clone, Debug)]
pub struct Handle {
    runtime: tokio::runtime::Handle,
    /// The node that created the handle.
    #[cfg(feature = "sim")]
    scope: Option<Arc<NodeScope>>,
}

impl From<tokio::runtime::Handle> for Handle {
    fn from(runtime: tokio::runtime::Handle) -> Handle {
        Handle {
            runtime,
            #[cfg(feature = "sim")]
            scope: NodeScope::current(),
        }
    }
}

impl Handle {
    /// The runtime of the caller.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub fn current() -> Handle {
        tokio::runtime::Handle::current().into()
    }

    /// The runtime of the caller; `None` outside of a runtime.
    pub fn try_current() -> Option<Handle> {
        tokio::runtime::Handle::try_current().ok().map(Handle::from)
    }

    /// Tokio's handle of the runtime.
    pub fn tokio(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    /// Runs `future` as a task.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        #[cfg(feature = "sim")]
        if let Some(scope) = NodeScope::current().or_else(|| self.scope.clone()) {
            let task = self.runtime.spawn(scope.run(future));
            scope.add_task(task.abort_handle());
            return task;
        }
        self.runtime.spawn(future)
    }

    /// Runs a function that blocks, on a thread for blocking work. A simulated node runs it in a
    /// task instead: threads would make the order of events random.
    pub fn spawn_blocking<T>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T>
    where
        T: Send + 'static,
    {
        #[cfg(feature = "sim")]
        if NodeScope::current().is_some() || self.scope.is_some() {
            return self.spawn(async move { work() });
        }
        self.runtime.spawn_blocking(work)
    }
}

/// Tasks that end when the set is dropped.
#[derive(Debug)]
pub struct JoinSet<T>(tokio::task::JoinSet<T>);

impl<T> Default for JoinSet<T> {
    fn default() -> JoinSet<T> {
        JoinSet::new()
    }
}

impl<T> JoinSet<T> {
    /// An empty set.
    pub fn new() -> JoinSet<T> {
        JoinSet(tokio::task::JoinSet::new())
    }
}

impl<T: Send + 'static> JoinSet<T> {
    /// Runs `future` as a task of the current runtime.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub fn spawn(&mut self, future: impl Future<Output = T> + Send + 'static) -> AbortHandle {
        #[cfg(feature = "sim")]
        if let Some(scope) = NodeScope::current() {
            let task = self.0.spawn(scope.run(future));
            scope.add_task(task.clone());
            return task;
        }
        self.0.spawn(future)
    }

    /// Waits for the next task that ends; `None` if the set is empty.
    ///
    /// # Errors
    ///
    /// The task panicked or was aborted.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        self.0.join_next().await
    }

    /// The result of a task that has ended; `None` if all tasks run.
    ///
    /// # Errors
    ///
    /// The task panicked or was aborted.
    pub fn try_join_next(&mut self) -> Option<Result<T, JoinError>> {
        self.0.try_join_next()
    }

    /// Waits for all tasks.
    ///
    /// # Panics
    ///
    /// If a task panicked.
    pub async fn join_all(self) -> Vec<T> {
        self.0.join_all().await
    }

    /// Number of tasks that run, or have a result that was not taken.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no task runs and all results were taken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
