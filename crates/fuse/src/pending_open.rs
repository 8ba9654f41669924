//! An open file until its handle goes to the kernel. If the program stops waiting for the open, the
//! file is closed.

use crate::state::State;
use client::OpenFile;
use fuser::FileHandle;
use std::sync::Arc;

/// An open file that is closed on drop unless it has a handle for the kernel.
pub(crate) struct PendingOpen {
    state: Arc<State>,
    file: Arc<OpenFile>,
    /// Whether a handle was allocated; the kernel then closes the file.
    has_handle: bool,
}

impl PendingOpen {
    pub(crate) fn new(state: Arc<State>, file: Arc<OpenFile>) -> PendingOpen {
        PendingOpen {
            state,
            file,
            has_handle: false,
        }
    }

    /// Allocates the handle for the kernel.
    pub(crate) fn handle(mut self) -> FileHandle {
        self.has_handle = true;
        FileHandle(self.state.files.insert(self.file.clone()))
    }
}

impl Drop for PendingOpen {
    fn drop(&mut self) {
        if self.has_handle {
            return;
        }
        let (client, file) = (self.state.client.clone(), self.file.clone());
        self.state.runtime.spawn(async move {
            if let Err(e) = client.release(&file).await {
                tracing::debug!(fid = %file.fid, "cannot close a file whose open was interrupted: {e}");
            }
        });
    }
}
