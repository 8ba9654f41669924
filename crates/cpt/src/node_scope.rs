//! The tasks of one simulated node. Many nodes share a thread; the scope tells their tasks apart,
//! so that a simulator can count a node's steps, freeze the node, or kill it at any of its await
//! points.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

thread_local! {
    /// The node of the task that this thread runs.
    static CURRENT: RefCell<Option<Arc<NodeScope>>> = const { RefCell::new(None) };
}

/// The list of tasks is searched for ended ones when it has grown to this length.
const TASKS_MIN: usize = 64;

/// One simulated node.
#[derive(Debug)]
pub struct NodeScope {
    id: u32,
    /// Number of polls of the node's tasks.
    polls: AtomicU64,
    /// The poll at which the node dies.
    dies_at: AtomicU64,
    dead: AtomicBool,
    died: Notify,
    frozen: AtomicBool,
    /// Tasks that were polled while the node was frozen.
    frozen_tasks: Mutex<Vec<Waker>>,
    tasks: Mutex<Tasks>,
}

#[derive(Debug)]
struct Tasks {
    handles: Vec<AbortHandle>,
    /// Length at which ended tasks are removed.
    sweep_at: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NodeScope {
    /// A node without tasks. `id` is the number by which the simulator tells nodes apart.
    pub fn new(id: u32) -> Arc<NodeScope> {
        Arc::new(NodeScope {
            id,
            polls: AtomicU64::new(0),
            dies_at: AtomicU64::new(u64::MAX),
            dead: AtomicBool::new(false),
            died: Notify::new(),
            frozen: AtomicBool::new(false),
            frozen_tasks: Mutex::default(),
            tasks: Mutex::new(Tasks {
                handles: Vec::new(),
                sweep_at: TASKS_MIN,
            }),
        })
    }

    /// The node of the calling task.
    pub fn current() -> Option<Arc<NodeScope>> {
        CURRENT
            .try_with(|current| current.borrow().clone())
            .ok()
            .flatten()
    }

    /// The id of the node of the calling task.
    pub fn current_id() -> Option<u32> {
        let id = |current: &RefCell<Option<Arc<NodeScope>>>| current.borrow().as_ref().map(|scope| scope.id);
        CURRENT.try_with(id).ok().flatten()
    }

    /// The id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Makes `future` a part of the node: all tasks that it spawns belong to the node, and it never
    /// resolves after the node's death.
    pub fn run<F: Future>(self: &Arc<Self>, future: F) -> InScope<F> {
        InScope {
            scope: self.clone(),
            future: Some(Box::pin(future)),
        }
    }

    /// Number of polls of the node's tasks.
    pub fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Lets the node die at the await point that precedes its poll number `poll`.
    pub fn die_at(&self, poll: u64) {
        self.dies_at.store(poll, Ordering::Relaxed);
    }

    /// Ends the node now: no task of it runs again. [`NodeScope::abort`] drops them.
    pub fn die(&self) {
        if !self.dead.swap(true, Ordering::Relaxed) {
            self.died.notify_one();
        }
    }

    /// Whether the node is dead.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Waits for the node's death. Only one caller may wait.
    pub async fn died(&self) {
        if !self.is_dead() {
            self.died.notified().await;
        }
    }

    /// Drops the tasks of a dead node. Their destructors still run as code of the node, so the
    /// caller first cuts the node off from its network and stores.
    pub fn abort(&self) {
        for task in lock(&self.tasks).handles.drain(..) {
            task.abort();
        }
        self.thaw();
    }

    /// Stops all tasks until [`NodeScope::thaw`].
    pub fn freeze(&self) {
        self.frozen.store(true, Ordering::Relaxed);
    }

    /// Lets frozen tasks run.
    pub fn thaw(&self) {
        self.frozen.store(false, Ordering::Relaxed);
        lock(&self.frozen_tasks).drain(..).for_each(Waker::wake);
    }

    /// Whether the node is frozen.
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Relaxed)
    }

    /// Number of tasks that have not ended.
    pub fn live_tasks(&self) -> usize {
        lock(&self.tasks)
            .handles
            .iter()
            .filter(|task| !task.is_finished())
            .count()
    }

    pub(crate) fn add_task(&self, task: AbortHandle) {
        if self.is_dead() {
            return task.abort();
        }
        let mut tasks = lock(&self.tasks);
        tasks.handles.push(task);
        if tasks.handles.len() >= tasks.sweep_at {
            tasks.handles.retain(|task| !task.is_finished());
            tasks.sweep_at = (2 * tasks.handles.len()).max(TASKS_MIN);
        }
    }

    /// Whether a task may run now; `cx` is its context.
    fn may_run(&self, cx: &Context<'_>) -> bool {
        if self.is_dead() {
            return false;
        }
        if self.is_frozen() {
            lock(&self.frozen_tasks).push(cx.waker().clone());
            return false;
        }
        if self.polls.fetch_add(1, Ordering::Relaxed) >= self.dies_at.load(Ordering::Relaxed) {
            self.die();
            return false;
        }
        true
    }
}

/// Makes a node the current one until the end of a poll.
struct Entered(Option<Arc<NodeScope>>);

impl Entered {
    fn new(scope: &Arc<NodeScope>) -> Entered {
        let enter = |current: &RefCell<Option<Arc<NodeScope>>>| current.replace(Some(scope.clone()));
        Entered(CURRENT.try_with(enter).ok().flatten())
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let outer = self.0.take();
        let _ = CURRENT.try_with(|current| current.replace(outer));
    }
}

/// A future of one node ([`NodeScope::run`]).
pub struct InScope<F: Future> {
    scope: Arc<NodeScope>,
    /// `None` while it is dropped.
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> Future for InScope<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let scope = self.scope.clone();
        if !scope.may_run(cx) {
            return Poll::Pending;
        }
        let _entered = Entered::new(&scope);
        match &mut self.future {
            Some(future) => future.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

impl<F: Future> Drop for InScope<F> {
    fn drop(&mut self) {
        let _entered = Entered::new(&self.scope);
        self.future = None;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::NodeScope;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::task::yield_now;

    #[tokio::test]
    async fn spawned_tasks_belong_to_the_node_of_the_spawner() {
        let node = NodeScope::new(7);
        let id = node
            .run(async { crate::spawn(async { NodeScope::current_id() }).await })
            .await;
        assert_eq!((id.unwrap(), NodeScope::current_id()), (Some(7), None));
    }

    #[tokio::test]
    async fn a_dead_node_runs_no_task_and_a_frozen_one_waits() {
        let node = NodeScope::new(1);
        let count = Arc::new(AtomicU32::new(0));
        let counting = count.clone();
        node.run(async move {
            crate::spawn(async move {
                loop {
                    counting.fetch_add(1, Ordering::Relaxed);
                    yield_now().await;
                }
            });
        })
        .await;
        let runs_on = async || {
            let before = count.load(Ordering::Relaxed);
            for _ in 0..3 {
                yield_now().await;
            }
            count.load(Ordering::Relaxed) > before
        };
        assert!(runs_on().await);
        node.freeze();
        assert!(!runs_on().await);
        node.thaw();
        assert!(runs_on().await);
        node.die_at(node.polls() + 5);
        node.died().await;
        assert!(!runs_on().await);
        node.abort();
        yield_now().await;
        yield_now().await;
        assert_eq!((Arc::strong_count(&count), node.live_tasks()), (1, 0));
    }
}
