//! A test while it runs on a client: how many of its requests are still being repeated, and that it is to stop.

use crate::spec::Spec;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use tokio::task::AbortHandle;

/// Requests of a session's tests that failed.
#[derive(Debug, Default)]
pub(crate) struct Errors {
    pub(crate) brw: AtomicU32,
    pub(crate) ping: AtomicU32,
}

/// One run of a test.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) spec: Arc<Spec>,
    pub(crate) errors: Arc<Errors>,
    active: AtomicUsize,
    stopping: AtomicBool,
    tasks: Mutex<Vec<AbortHandle>>,
}

/// One of the requests that a run repeats; dropping it says that it is done.
#[derive(Debug)]
pub(crate) struct Unit(Arc<Run>);

impl Run {
    /// A run that has still to begin, of so many units.
    pub(crate) fn new(spec: Arc<Spec>, errors: Arc<Errors>, units: usize) -> Arc<Run> {
        Arc::new(Run {
            spec,
            errors,
            active: AtomicUsize::new(units),
            stopping: AtomicBool::new(false),
            tasks: Mutex::default(),
        })
    }

    /// How many units are not done.
    pub(crate) fn active(&self) -> usize {
        self.active.load(Ordering::Acquire)
    }

    /// Whether it was told to stop.
    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// One of its units, each to be made once.
    pub(crate) fn unit(self: &Arc<Self>) -> Unit {
        Unit(self.clone())
    }

    /// Keeps what ends a unit by force.
    pub(crate) fn keep(&self, task: AbortHandle) {
        let mut tasks = self.tasks.lock();
        if self.stopping() {
            task.abort();
        }
        tasks.push(task);
    }

    /// Lets each unit end its request and then be done; by force, at once.
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
