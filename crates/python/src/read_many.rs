//! Many reads in one call: each of several threads takes the next request until none is left.

use crate::mounted::State;
use crate::wait;
use bytes::Bytes;
use parking_lot::Mutex;
use posix::{Open, files};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::{Bound, PyAny, PyAnyMethods, PyListMethods, PyResult, Python};
use pyo3::types::PyList;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, watch};
use tokio::task::JoinHandle;
use wire::Errno;

/// Largest number of threads for one call, including the caller's.
const THREADS_MAX: usize = 16;

/// A read: the path, the offset, and the number of bytes.
pub(crate) type Request = (Arc<[u8]>, u64, usize);

/// A file that several requests of a call read. The first of them opens it.
type SharedFile = Arc<OnceCell<Open>>;

/// The requests of a Python program: path, offset and number of bytes; `None`: to the end.
///
/// # Errors
///
/// `TypeError` with the number and the form of the first wrong request.
pub(crate) fn parse(requests: &Bound<'_, PyAny>) -> PyResult<Vec<(PathBuf, i64, Option<usize>)>> {
    let mut parsed = Vec::new();
    for (i, request) in requests.try_iter()?.enumerate() {
        let request = request?;
        let tuple = match request.cast::<PyList>() {
            Ok(list) => list.to_tuple().into_any(),
            Err(_) => request,
        };
        parsed.push(tuple.extract().map_err(|_| {
            PyTypeError::new_err(format!(
                "read_many: request {i} is {tuple:?}: each request is a tuple (path, offset, length); a length of \
                 None means to the end of the file"
            ))
        })?);
    }
    Ok(parsed)
}

/// The requests of a call, and their results.
struct Job {
    state: Arc<State>,
    requests: Vec<(Request, SharedFile)>,
    /// The file of each path.
    files: Vec<SharedFile>,
    progress: Mutex<Progress>,
    /// Whether a signal has interrupted the call.
    interrupted: watch::Sender<bool>,
}

struct Progress {
    /// The number of requests that threads have taken.
    taken: usize,
    /// The result of each request that is done.
    results: Vec<Option<Result<Vec<Bytes>, Errno>>>,
}

impl Job {
    /// Takes requests until none is left.
    async fn work(&self) {
        while let Some((index, (request, file))) = self.take() {
            let result = self.state.run_for_job(self.read(request, file)).await;
            if let Some(place) = self.progress.lock().results.get_mut(index) {
                *place = Some(result);
            }
        }
    }

    /// Takes requests on a helper thread until none is left or a signal interrupts the call.
    fn help(&self, runtime: &Handle) {
        let mut interrupted = self.interrupted.subscribe();
        runtime.block_on(async {
            tokio::select! {
                biased;
                () = self.work() => {}
                _ = interrupted.wait_for(|interrupted| *interrupted) => {}
            }
        });
    }

    /// Waits for the helpers, and closes the files.
    async fn finish(self: Arc<Self>, helpers: Vec<JoinHandle<()>>) -> Result<(), Errno> {
        for helper in helpers {
            // If a helper panics, its request has no result and fails with `EIO`.
            let _ = helper.await;
        }
        for open in self.files.iter().filter_map(|file| file.get()) {
            // The file was only read: its close loses no data.
            let _ = open.close(&self.state).await;
        }
        Ok(())
    }

    fn take(&self) -> Option<(usize, &(Request, SharedFile))> {
        let mut progress = self.progress.lock();
        let index = progress.taken;
        let next = self.requests.get(index)?;
        progress.taken += 1;
        Some((index, next))
    }

    async fn read(&self, (path, offset, len): &Request, file: &SharedFile) -> Result<Vec<Bytes>, Errno> {
        let open = || files::open(&self.state, path, libc::O_RDONLY, 0, Bytes::new());
        let file = file.get_or_try_init(open).await?.file()?;
        file.read_bytes_at(&self.state, *offset, *len).await
    }
}

/// The pieces of each request, or the index of the first failed request and its error.
type ReadResult = Result<Vec<Vec<Bytes>>, (usize, Errno)>;

/// Reads all requests. Opens each path once; if the open fails, the next request of the path tries
/// again.
///
/// # Errors
///
/// The exception of a signal handler.
pub(crate) fn read_many(py: Python<'_>, state: &Arc<State>, requests: Vec<Request>) -> PyResult<ReadResult> {
    let mut files: BTreeMap<Arc<[u8]>, SharedFile> = BTreeMap::new();
    let with_file = requests.into_iter().map(|request| {
        let file = files.entry(request.0.clone()).or_default().clone();
        (request, file)
    });
    let requests: Vec<_> = with_file.collect();
    let count = requests.len();
    let job = Arc::new(Job {
        state: state.clone(),
        requests,
        files: files.into_values().collect(),
        progress: Mutex::new(Progress {
            taken: 0,
            results: vec![None; count],
        }),
        interrupted: watch::Sender::new(false),
    });
    let runtime = state.runtime();
    let helpers: Vec<_> = (1..count.min(THREADS_MAX))
        .map(|_| {
            let (job, handle) = (job.clone(), runtime.clone());
            runtime.spawn_blocking(move || job.help(&handle))
        })
        .collect();
    let worked = wait::run(py, state, async || {
        job.work().await;
        Ok(())
    });
    job.interrupted.send_replace(worked.is_err());
    let finish = job.clone().finish(helpers);
    if let Err(e) = worked {
        runtime.spawn(finish);
        return Err(e);
    }
    // `finish` always returns `Ok`.
    let _ = wait::run_to_completion(py, state, finish)?;
    let results = std::mem::take(&mut job.progress.lock().results);
    let all = results.into_iter().enumerate();
    Ok(all
        .map(|(i, result)| result.unwrap_or(Err(Errno::EIO)).map_err(|e| (i, e)))
        .collect())
}
