//! Many reads in one call: each of several threads takes the next request until none is left.

use crate::mounted::State;
use bytes::Bytes;
use parking_lot::Mutex;
use posix::{Open, files};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use wire::Errno;

/// Largest number of threads for one call, with the caller's.
const THREADS_MAX: usize = 16;

/// A read: the path, the offset, and the number of bytes.
pub(crate) type Request = (Arc<[u8]>, u64, usize);

/// A file that several requests of a call read. The first of them opens it.
type SharedFile = Arc<OnceCell<Open>>;

/// The requests of a call, and their results.
struct Job {
    state: Arc<State>,
    requests: Vec<(Request, SharedFile)>,
    progress: Mutex<Progress>,
}

struct Progress {
    /// The number of requests that a thread has taken.
    taken: usize,
    /// The result of each request that is done.
    results: Vec<Option<Result<Vec<Bytes>, Errno>>>,
}

impl Job {
    /// Takes requests until none is left.
    fn work(&self, runtime: &Handle) {
        while let Some((index, (request, file))) = self.take() {
            let result = runtime.block_on(self.state.run_for_job(self.read(request, file)));
            if let Some(place) = self.progress.lock().results.get_mut(index) {
                *place = Some(result);
            }
        }
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

/// Reads all requests; returns the pieces of each. Opens each path once, or again for the
/// next request of the path if that fails. Must not run in an async context.
///
/// # Errors
///
/// The first failed request of the list, and the reason.
pub(crate) fn read_many(
    state: &Arc<State>,
    requests: Vec<Request>,
) -> Result<Vec<Vec<Bytes>>, (usize, Errno)> {
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
        progress: Mutex::new(Progress {
            taken: 0,
            results: vec![None; count],
        }),
    });
    let runtime = state.runtime();
    let helpers: Vec<_> = (1..count.min(THREADS_MAX))
        .map(|_| {
            let (job, handle) = (job.clone(), runtime.clone());
            runtime.spawn_blocking(move || job.work(&handle))
        })
        .collect();
    job.work(runtime);
    runtime.block_on(async {
        for helper in helpers {
            // The results of a helper that panics are missing.
            let _ = helper.await;
        }
        for open in files.values().filter_map(|file| file.get()) {
            // The file was only read: its close loses no data.
            let _ = open.close(state).await;
        }
    });
    let results = std::mem::take(&mut job.progress.lock().results);
    let all = results.into_iter().enumerate();
    all.map(|(i, result)| result.unwrap_or(Err(Errno::EIO)).map_err(|e| (i, e)))
        .collect()
}
