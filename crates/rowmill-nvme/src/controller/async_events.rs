//! Asynchronous events: a controller answers a held request when something happens. An event of one kind is not sent again
//! until the host has read its log page.

use std::collections::VecDeque;

use crate::identify::{ASYNC_EVENTS_MAX, EVENT_DISCOVERY, EVENT_NAMESPACE};
use crate::log::page;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Happening {
    /// A namespace changed.
    Namespace,
    /// Subsystems of the port changed.
    Discovery,
}

impl Happening {
    const ALL: [Happening; 2] = [Happening::Namespace, Happening::Discovery];

    /// The bit by which a host asks for it.
    pub(super) fn bit(self) -> u32 {
        match self {
            Happening::Namespace => EVENT_NAMESPACE,
            Happening::Discovery => EVENT_DISCOVERY,
        }
    }

    fn log_page(self) -> u8 {
        match self {
            Happening::Namespace => page::CHANGED_NAMESPACES,
            Happening::Discovery => page::DISCOVERY,
        }
    }

    /// Dword 0 of the answer: a notice, its number, and the log page to read.
    fn result(self) -> u64 {
        let information = match self {
            Happening::Namespace => 0x00,
            Happening::Discovery => 0xf0,
        };
        2 | information << 8 | u64::from(self.log_page()) << 16
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Notice {
    #[default]
    Idle,
    /// The event happened and was not sent to the host.
    Due,
    /// The event was sent, and the host has not read the log page.
    Sent,
}

#[derive(Debug, Default)]
pub(super) struct AsyncEvents {
    requests: VecDeque<u16>,
    notices: [Notice; 2],
}

impl AsyncEvents {
    /// Keep a request; false if there are too many.
    pub(super) fn hold(&mut self, cid: u16) -> bool {
        let has_room = self.requests.len() < ASYNC_EVENTS_MAX;
        if has_room {
            self.requests.push_back(cid);
        }
        has_room
    }

    /// Remove a request that the host aborts.
    pub(super) fn remove(&mut self, cid: u16) -> bool {
        let before = self.requests.len();
        self.requests.retain(|&held| held != cid);
        self.requests.len() < before
    }

    /// Remove all requests.
    pub(super) fn remove_all(&mut self) -> Vec<u16> {
        self.notices = Default::default();
        self.requests.drain(..).collect()
    }

    pub(super) fn happened(&mut self, happening: Happening) {
        let notice = &mut self.notices[happening as usize];
        if *notice == Notice::Idle {
            *notice = Notice::Due;
        }
    }

    /// The host has read a log page.
    pub(super) fn page_read(&mut self, page: u8) {
        for happening in Happening::ALL {
            if happening.log_page() == page {
                self.notices[happening as usize] = Notice::Idle;
            }
        }
    }

    /// A held request and its result, if an event happened that the host has enabled.
    pub(super) fn next(&mut self, enabled: u32) -> Option<(u16, u64)> {
        let due = Happening::ALL.into_iter().find(|&happening| {
            self.notices[happening as usize] == Notice::Due && enabled & happening.bit() != 0
        })?;
        let cid = self.requests.pop_front()?;
        self.notices[due as usize] = Notice::Sent;
        Some((cid, due.result()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_told_once_until_its_page_is_read() {
        let mut events = AsyncEvents::default();
        events.happened(Happening::Namespace);
        assert_eq!(events.next(u32::MAX), None, "no request");
        assert!(events.hold(7) && events.hold(8));
        assert_eq!(events.next(0), None, "not enabled");
        assert_eq!(events.next(EVENT_NAMESPACE), Some((7, 0x04_0002)));
        events.happened(Happening::Namespace);
        assert_eq!(events.next(u32::MAX), None, "not read");
        events.page_read(page::CHANGED_NAMESPACES);
        events.happened(Happening::Discovery);
        assert_eq!(events.next(u32::MAX), Some((8, 0x70_f002)));
    }

    #[test]
    fn requests_are_bounded_and_can_be_aborted() {
        let mut events = AsyncEvents::default();
        assert!((0..4).all(|cid| events.hold(cid)));
        assert!(!events.hold(4));
        assert!(events.remove(2) && !events.remove(2));
        assert!(events.hold(5));
        assert_eq!(events.remove_all(), [0, 1, 3, 5]);
    }
}
