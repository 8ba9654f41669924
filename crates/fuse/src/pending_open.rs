//! An open file until the kernel takes its handle: the program may stop waiting for the open.

use crate::state::State;
use client::OpenFile;
use fuser::FileHandle;
use std::sync::Arc;

/// An open file that is closed on drop unless the kernel got its handle.
pub(crate) struct PendingOpen {
    state: Arc<State>,
    file: Arc<OpenFile>,
    /// Whether the kernel got the handle.
    handed_over: bool,
}

impl PendingOpen {
    pub(crate) fn new(state: Arc<State>, file: Arc<OpenFile>) -> PendingOpen {
        PendingOpen {
            state,
            file,
            handed_over: false,
        }
    }

    /// Allocates the handle for the kernel.
    pub(crate) fn handle(mut self) -> FileHandle {
        self.handed_over = true;
        FileHandle(self.state.files.insert(self.file.clone()))
    }
}

impl Drop for PendingOpen {
    fn drop(&mut self) {
        if self.handed_over {
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
