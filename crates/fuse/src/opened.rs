//! A file that was opened for a program that may have given up the wait.

use crate::state::State;
use client::OpenFile;
use fuser::FileHandle;
use std::sync::Arc;

/// Closes the file again unless the kernel is given a handle of it.
pub(crate) struct Opened {
    state: Arc<State>,
    file: Arc<OpenFile>,
    /// Whether the kernel has a handle of it.
    handed_over: bool,
}

impl Opened {
    pub(crate) fn new(state: Arc<State>, file: Arc<OpenFile>) -> Opened {
        Opened {
            state,
            file,
            handed_over: false,
        }
    }

    /// The handle by which the kernel knows the file from now on.
    pub(crate) fn handle(mut self) -> FileHandle {
        self.handed_over = true;
        FileHandle(self.state.files.insert(self.file.clone()))
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.handed_over {
            return;
        }
        let (client, file) = (self.state.client.clone(), self.file.clone());
        self.state.runtime.spawn(async move {
            if let Err(e) = client.release(&file).await {
                tracing::debug!(fid = %file.fid, "closing a file that nobody waited for: {e}");
            }
        });
    }
}
