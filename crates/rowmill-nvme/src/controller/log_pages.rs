//! Log pages of a controller.

use zerocopy::IntoBytes;

use super::admin::{ALL_NAMESPACES, View};
use super::answer::{Page, PageRequest};
use super::port::Controller;
use super::{Content, Outcome, Request};
use crate::command::Status;
use crate::log::{CHANGED_MAX, SupportedCommands, discovery_page, page};

/// RAE: reading the page does not clear its event.
const RETAIN_EVENT: u32 = 1 << 15;
/// The offset counts entries, not bytes.
const OFFSET_OF_ENTRIES: u32 = 1 << 23;

impl Controller {
    pub(super) fn log_page(&mut self, view: &View<'_>, request: &Request) -> Result<Outcome, Status> {
        let command = &request.command;
        let (low, number) = (command.dword(10), command.dword(10) as u8);
        let words = u64::from(low >> 16) | u64::from(command.dword(11) & 0xffff) << 16;
        if (words + 1) * 4 != request.answer_bytes as u64 {
            return Err(Status::DATA_LENGTH_INVALID);
        }
        let offset = command.quadword(12);
        if !offset.is_multiple_of(4) || command.dword(14) & OFFSET_OF_ENTRIES != 0 {
            return Err(Status::INVALID_FIELD);
        }
        let wanted = |page| PageRequest { page, offset, bytes: request.answer_bytes };
        let is_io = view.subsystem.is_some();
        let namespace = command.nsid.get();
        let bytes = match number {
            page::SUPPORTED => supported_pages(view),
            page::ERRORS => self.errors.page(),
            page::HEALTH if is_io => {
                // There is one health for all namespaces.
                let is_for_all = matches!(namespace, 0 | ALL_NAMESPACES);
                return if is_for_all {
                    Ok(Outcome::Page(wanted(Page::Health)))
                } else {
                    Err(Status::INVALID_FIELD)
                };
            }
            page::FIRMWARE if is_io => firmware_page(view),
            page::CHANGED_NAMESPACES if is_io => self.changed_page(),
            page::COMMANDS if is_io => SupportedCommands::new(view.has_rows()).as_bytes().to_vec(),
            page::DISCOVERY if !is_io => {
                let allowed: Vec<_> = view
                    .subsystems
                    .iter()
                    .filter(|subsystem| subsystem.hosts.find(&self.host).is_some())
                    .map(|subsystem| &subsystem.name)
                    .collect();
                discovery_page(allowed.into_iter(), view.endpoint, view.generation)
            }
            page::TABLES if view.has_rows() => {
                let found = view.namespaces().iter().find(|found| found.number == namespace);
                return match found {
                    Some(found) if found.content == Content::Rows => {
                        Ok(Outcome::Page(wanted(Page::Tables { namespace })))
                    }
                    _ => Err(Status::INVALID_NAMESPACE),
                };
            }
            _ => return Err(Status::INVALID_LOG_PAGE),
        };
        let answer = wanted(Page::Health).answer(&bytes);
        if answer.status == Status::SUCCESS && low & RETAIN_EVENT == 0 {
            self.events.page_read(number);
            if number == page::CHANGED_NAMESPACES {
                self.changed.clear();
            }
        }
        Ok(Outcome::Answer(answer))
    }

    fn changed_page(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = if self.changed.len() > CHANGED_MAX {
            u32::MAX.to_le_bytes().to_vec()
        } else {
            self.changed.iter().flat_map(|number| number.to_le_bytes()).collect()
        };
        bytes.resize(CHANGED_MAX * 4, 0);
        bytes
    }
}

fn supported_pages(view: &View<'_>) -> Vec<u8> {
    let mut pages = vec![page::SUPPORTED, page::ERRORS];
    if view.subsystem.is_some() {
        pages.extend([page::HEALTH, page::FIRMWARE, page::CHANGED_NAMESPACES, page::COMMANDS]);
    } else {
        pages.push(page::DISCOVERY);
    }
    if view.has_rows() {
        pages.push(page::TABLES);
    }
    let mut bytes = vec![0; 256 * 4];
    for page in pages {
        bytes[usize::from(page) * 4] = 1;
    }
    bytes
}

fn firmware_page(view: &View<'_>) -> Vec<u8> {
    let mut bytes = vec![0; 512];
    // The first slot is active.
    bytes[0] = 1;
    if let Some(subsystem) = view.subsystem {
        crate::identify::fill_text(&mut bytes[8..16], &subsystem.firmware);
    }
    bytes
}
