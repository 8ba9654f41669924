//! Syncs the engine's journals without the engine's lock.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::OsdError;

/// The engine's journals: files `N.jnl`. The engine appends to the last one, and syncs it before it
/// starts the next. The files stay open: the kernel may not report a writeback error to a file that
/// is opened after the error.
pub(crate) struct Journals {
    dir: PathBuf,
    open: HashMap<PathBuf, fs::File>,
}

impl Journals {
    pub(crate) fn new(dir: &Path) -> Journals {
        Journals {
            dir: dir.into(),
            open: HashMap::new(),
        }
    }

    /// Waits until the journals' data in the page cache is on disk.
    pub(crate) fn sync(&mut self) -> Result<(), OsdError> {
        let mut still_open = HashMap::new();
        for entry in fs::read_dir(&self.dir).map_err(OsdError::io("list", &self.dir))? {
            let path = entry.map_err(OsdError::io("list", &self.dir))?.path();
            if path.extension().is_none_or(|e| e != "jnl") {
                continue;
            }
            let file = match self.open.remove(&path) {
                Some(file) => file,
                None => match fs::File::open(&path) {
                    Ok(file) => file,
                    // The engine removed the journal: its contents are in synced tables.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                    Err(e) => return Err(OsdError::io("open", path)(e)),
                },
            };
            file.sync_data().map_err(OsdError::io("sync", &path))?;
            still_open.insert(path, file);
        }
        if still_open.is_empty() {
            let why = "found no journal (*.jnl) to sync: unsupported version of the index engine".into();
            return Err(OsdError::Engine {
                op: "sync",
                path: self.dir.clone(),
                why,
            });
        }
        self.open = still_open;
        Ok(())
    }
}

/// A thread that syncs the journals. A sync to a slow disk takes seconds; meanwhile the committer
/// flushes new batches to the kernel.
pub(crate) struct SyncThread {
    requests: Option<SyncSender<()>>,
    results: Receiver<Result<(), OsdError>>,
    thread: Option<JoinHandle<()>>,
}

impl SyncThread {
    /// Starts the thread; it calls `sync` for each request.
    pub(crate) fn start(
        mut sync: impl FnMut() -> Result<(), OsdError> + Send + 'static,
    ) -> io::Result<SyncThread> {
        let (requests, receiver) = sync_channel(1);
        let (sender, results) = sync_channel(1);
        let thread = thread::Builder::new().name("osd-sync".into()).spawn(move || {
            while receiver.recv().is_ok() && sender.send(sync()).is_ok() {}
        })?;
        Ok(SyncThread {
            requests: Some(requests),
            results,
            thread: Some(thread),
        })
    }

    /// Syncs, and calls `meanwhile` every `interval` until the sync ends.
    pub(crate) fn sync(&self, interval: Duration, mut meanwhile: impl FnMut()) -> Result<(), OsdError> {
        let ended = || OsdError::Invalid("the sync thread ended");
        self.requests
            .as_ref()
            .and_then(|requests| requests.send(()).ok())
            .ok_or_else(ended)?;
        loop {
            match self.results.recv_timeout(interval) {
                Ok(synced) => return synced,
                Err(RecvTimeoutError::Timeout) => meanwhile(),
                Err(RecvTimeoutError::Disconnected) => return Err(ended()),
            }
        }
    }
}

impl Drop for SyncThread {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the sync thread panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::SyncThread;
    use crate::OsdError;
    use std::{sync::mpsc, time::Duration};

    #[test]
    fn callback_runs_during_a_slow_sync() {
        let (done, until_done) = mpsc::channel::<()>();
        // This sync lasts until the callback ran three times.
        let thread = SyncThread::start(move || {
            (0..3).for_each(|_| until_done.recv().unwrap());
            Ok(())
        });
        let mut times = 0;
        thread
            .unwrap()
            .sync(Duration::from_millis(1), || {
                times += 1;
                let _ = done.send(());
            })
            .unwrap();
        assert!(times >= 3);
    }

    #[test]
    fn sync_returns_the_error_of_its_thread() {
        let mut fails = false;
        let thread = SyncThread::start(move || {
            fails = !fails;
            match fails {
                true => Err(OsdError::NoSpace),
                false => Ok(()),
            }
        })
        .unwrap();
        let sync = || thread.sync(Duration::from_millis(1), || {});
        assert!(matches!(sync(), Err(OsdError::NoSpace)));
        assert!(sync().is_ok());
    }
}
