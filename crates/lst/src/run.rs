//! A running test on a client: its active units and its stop flag.

use crate::spec::TestSpec;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use tokio::task::AbortHandle;

/// The numbers of failed test requests of a session.
#[derive(Debug, Default)]
pub(crate) struct ErrorCounts {
    pub(crate) brw: AtomicU32,
    pub(crate) ping: AtomicU32,
}

/// One run of a test.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) spec: Arc<TestSpec>,
    pub(crate) errors: Arc<ErrorCounts>,
    /// Number of units that are not done.
    active: AtomicUsize,
    stopping: AtomicBool,
    /// The tasks of the units.
    tasks: Mutex<Vec<AbortHandle>>,
}

/// A test unit of a run: sends one request after the other. Dropping the unit marks it as done.
#[derive(Debug)]
pub(crate) struct Unit(Arc<Run>);

impl Run {
    /// A run of `units` units that are not started yet.
    pub(crate) fn new(spec: Arc<TestSpec>, errors: Arc<ErrorCounts>, units: usize) -> Arc<Run> {
        Arc::new(Run {
            spec,
            errors,
            active: AtomicUsize::new(units),
            stopping: AtomicBool::new(false),
            tasks: Mutex::default(),
        })
    }

    /// The number of units that are not done.
    pub(crate) fn active_units(&self) -> usize {
        self.active.load(Ordering::Acquire)
    }

    /// Whether [`Run::stop`] was called.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Creates one of the units that [`Run::new`] counts.
    pub(crate) fn create_unit(self: &Arc<Self>) -> Unit {
        Unit(self.clone())
    }

    /// Registers a unit's task, so that a forced stop can abort the task. Aborts the task at once
    /// if the run is already stopping.
    pub(crate) fn add_task(&self, task: AbortHandle) {
        let mut tasks = self.tasks.lock();
        if self.is_stopping() {
            task.abort();
        }
        tasks.push(task);
    }

    /// Stops the run: each unit completes its current request. With `force`, aborts the requests.
    pub(crate) fn stop(&self, force: bool) {
        self.stopping.store(true, Ordering::Relaxed);
        if force {
            self.tasks.lock().drain(..).for_each(|task| task.abort());
        }
    }
}

impl std::ops::Deref for Unit {
    type Target = Run;
    fn deref(&self) -> &Run {
        &self.0
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Release);
    }
}
