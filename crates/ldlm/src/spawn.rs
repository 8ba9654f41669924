//! Where the lock manager's own tasks run: on the partition that has the work at hand. Locks are also let go of by
//! threads that belong to no runtime; their tasks run where the lock manager was made.

use tokio::runtime::Handle;

/// Starts tasks.
#[derive(Clone, Debug)]
pub(crate) struct Spawner(Handle);

impl Spawner {
    /// Falls back to the runtime that it is called from.
    pub(crate) fn current() -> Spawner {
        Spawner(Handle::current())
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        Handle::try_current().as_ref().unwrap_or(&self.0).spawn(task);
    }
}
