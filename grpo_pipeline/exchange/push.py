"""Upload of a data set folder to the Hugging Face Hub."""

from dataclasses import dataclass
from pathlib import Path

from grpo_pipeline.errors import UserError


@dataclass(frozen=True)
class Upload:
    """A file of an upload: its path in the folder and its bytes."""

    path: str
    bytes: int


def list_upload(folder: Path) -> list[Upload]:
    """Every file that `push_folder` would send, by path; hidden files stay here."""
    return [
        Upload(str(path.relative_to(folder)), path.stat().st_size)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


def push_folder(folder: Path, repository: str) -> str:
    """Upload a data set folder, making a private data set where there is none; returns its address.

    Raises:
        UserError: The id is not valid, there is no token, or the hub refuses.
    """
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    api = huggingface_hub.HfApi()
    try:
        api.create_repo(repository, repo_type="dataset", private=True, exist_ok=True)
        api.upload_folder(
            repo_id=repository,
            repo_type="dataset",
            folder_path=folder,
            allow_patterns=[file.path for file in list_upload(folder)],
            commit_message="Data set of grpo-pipeline",
        )
    except (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OSError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"--push {repository}: {reason}; log in with 'hf auth login', and check the id") from error
    return f"https://huggingface.co/datasets/{repository}"
