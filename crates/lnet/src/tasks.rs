//! The tasks of one node's stack. They are stopped together, and their end can be awaited.

use cpt::Cpt;
use parking_lot::Mutex;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{mpsc, watch};

/// Spawns tasks that end at the latest when the stack stops.
#[derive(Debug)]
pub(crate) struct Tasks {
    stop: watch::Sender<bool>,
    /// The same flag, readable without a lock.
    is_stopping: AtomicBool,
    /// Every task holds a clone; when all are dropped, the receiver reports the end of the channel.
    alive: Mutex<Option<mpsc::Sender<()>>>,
    all_ended: tokio::sync::Mutex<mpsc::Receiver<()>>,
}

impl Tasks {
    pub(crate) fn new() -> Tasks {
        let (alive, all_ended) = mpsc::channel(1);
        let (stop, _) = watch::channel(false);
        Tasks {
            stop,
            is_stopping: AtomicBool::new(false),
            alive: Mutex::new(Some(alive)),
            all_ended: tokio::sync::Mutex::new(all_ended),
        }
    }

    /// Runs `future` on `cpt` until it ends or the stack stops. Does nothing once the stack is
    /// stopping.
    pub(crate) fn spawn(&self, cpt: &Cpt, future: impl Future<Output = ()> + Send + 'static) {
        let Some(alive) = self.alive.lock().clone() else {
            return;
        };
        let mut stop = self.stop.subscribe();
        cpt.spawn(async move {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => {}
                () = future => {}
            }
            drop(alive);
        });
    }

    /// Whether the stack is stopping.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Signals all tasks to stop, without waiting.
    pub(crate) fn stop(&self) {
        self.alive.lock().take();
        self.is_stopping.store(true, Ordering::Relaxed);
        self.stop.send_replace(true);
    }

    /// Stops all tasks and waits for their end.
    pub(crate) async fn join(&self) {
        self.stop();
        // No task sends anything: the loop ends when the last task drops its sender.
        while self.all_ended.lock().await.recv().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::Tasks;
    use cpt::{CptId, CptTable};
    use std::sync::Arc;

    #[tokio::test]
    async fn join_ends_tasks_that_would_wait_forever() {
        let cpts = CptTable::single_current();
        let tasks = Tasks::new();
        let token = Arc::new(());
        let task_token = token.clone();
        tasks.spawn(cpts.get(CptId(0)), async move {
            std::future::pending::<()>().await;
            drop(task_token);
        });
        tasks.join().await;
        assert_eq!(Arc::strong_count(&token), 1);
        tasks.spawn(cpts.get(CptId(0)), async {
            unreachable!("no task starts after join")
        });
    }
}
