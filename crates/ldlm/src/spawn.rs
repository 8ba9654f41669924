//! Spawns the lock manager's tasks on the current partition. A thread outside of any runtime may
//! drop a lock, too. The task that this starts runs on the runtime that created the lock server or
//! lock client.

use cpt::Handle;

/// Spawns on the current runtime or, outside of any, on the runtime that created this spawner.
#[derive(Clone, Debug)]
pub(crate) struct Spawner(Handle);

impl Spawner {
    /// Uses the current runtime as fallback.
    pub(crate) fn current() -> Spawner {
        Spawner(Handle::current())
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        Handle::try_current().as_ref().unwrap_or(&self.0).spawn(task);
    }
}
