//! The engine's journals, synced outside of the engine.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::OsdError;

/// The engine's journals: files `N.jnl`, of which the last is written; the engine syncs one itself before it begins
/// the next. They are kept open so that an error of writing back is seen here.
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

    /// Everything that the kernel has of them is on disk when this returns.
    pub(crate) fn sync(&mut self) -> Result<(), OsdError> {
        let mut there = HashMap::new();
        for entry in fs::read_dir(&self.dir).map_err(OsdError::io("list", &self.dir))? {
            let path = entry.map_err(OsdError::io("list", &self.dir))?.path();
            if path.extension().is_none_or(|e| e != "jnl") {
                continue;
            }
            let file = match self.open.remove(&path) {
                Some(file) => file,
                None => match fs::File::open(&path) {
                    Ok(file) => file,
                    // Its content is in the sorted files by now, which the engine syncs before it removes a journal.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                    Err(e) => return Err(OsdError::io("open", path)(e)),
                },
            };
            file.sync_data().map_err(OsdError::io("sync", &path))?;
            there.insert(path, file);
        }
        if there.is_empty() {
            let why = "no journal (*.jnl) to sync: not the engine version that this was written for".into();
            return Err(OsdError::Engine {
                what: "sync",
                path: self.dir.clone(),
                why,
            });
        }
        self.open = there;
        Ok(())
    }
}

/// A thread that syncs, so that the thread that asks for it can go on meanwhile: a slow disk takes seconds.
pub(crate) struct SyncThread {
    asks: Option<SyncSender<()>>,
    answers: Receiver<Result<(), OsdError>>,
    thread: Option<JoinHandle<()>>,
}

impl SyncThread {
    /// Starts the thread; `sync` is what it does each time it is asked.
    pub(crate) fn start(
        mut sync: impl FnMut() -> Result<(), OsdError> + Send + 'static,
    ) -> io::Result<SyncThread> {
        let (asks, asked) = sync_channel(1);
        let (answer, answers) = sync_channel(1);
        let thread = thread::Builder::new().name("osd-sync".into()).spawn(move || {
            while asked.recv().is_ok() && answer.send(sync()).is_ok() {}
        })?;
        Ok(SyncThread {
            asks: Some(asks),
            answers,
            thread: Some(thread),
        })
    }

    /// Syncs; calls `meanwhile` every `interval` until that is done.
    pub(crate) fn sync(&self, interval: Duration, mut meanwhile: impl FnMut()) -> Result<(), OsdError> {
        let ended = || OsdError::Invalid("the syncing thread is gone");
        self.asks
            .as_ref()
            .and_then(|a| a.send(()).ok())
            .ok_or_else(ended)?;
        loop {
            match self.answers.recv_timeout(interval) {
                Ok(synced) => return synced,
                Err(RecvTimeoutError::Timeout) => meanwhile(),
                Err(RecvTimeoutError::Disconnected) => return Err(ended()),
            }
        }
    }
}

impl Drop for SyncThread {
    fn drop(&mut self) {
        self.asks = None;
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("a syncing thread ended by a panic");
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
    fn what_is_to_be_done_meanwhile_is_done_during_a_slow_sync() {
        let (done, until_done) = mpsc::channel::<()>();
        // As slow as it takes to do the other thing three times.
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
    fn an_error_of_the_disk_is_the_error_of_the_sync() {
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
