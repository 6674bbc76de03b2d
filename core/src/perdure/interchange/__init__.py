"""Conversations in files: JSON Lines of our own, chat messages of OpenAI's form, Claude-shaped transcripts."""

from perdure.interchange.calls import repair_calls
from perdure.interchange.claude_reading import drafts_from_claude
from perdure.interchange.claude_writing import claude_from_transcripts
from perdure.interchange.drafts import Draft
from perdure.interchange.exporting import ExportReport, export_claude, export_conversations, export_openai
from perdure.interchange.importing import ImportReport, import_claude, import_conversations, import_openai
from perdure.interchange.notes import Converted, Note
from perdure.interchange.openai_chat import openai_from_records, records_from_openai

__all__ = [
    "Converted",
    "Draft",
    "ExportReport",
    "ImportReport",
    "Note",
    "claude_from_transcripts",
    "drafts_from_claude",
    "export_claude",
    "export_conversations",
    "export_openai",
    "import_claude",
    "import_conversations",
    "import_openai",
    "openai_from_records",
    "records_from_openai",
    "repair_calls",
]
